from __future__ import annotations

from tests.ranks import run_ranks


def test_the_norm_of_parts_on_several_meshes():
    """tp x fully_shard makes strided shards; norms are whole over tp; a second mesh stands for the experts'."""

    def run() -> None:
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module

        from trainer.parallel.gradnorm import clip_gradients, measure_norm

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp", "tp", "pp"))
        cut = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        parallelize_module(cut, mesh["tp"], {"0": ColwiseParallel(), "1": SequenceParallel()})
        fully_shard(cut, mesh=mesh["dp"])
        other = nn.Linear(4, 6)
        fully_shard(other, mesh=init_device_mesh("cpu", (4,), mesh_dim_names=("other",)))
        gradients = []
        for i, parameter in enumerate([*cut.parameters(), *other.parameters()]):
            generator = torch.Generator().manual_seed(10 * i + dist.get_rank())
            gradient = parameter.detach().clone()
            gradient.to_local().copy_(torch.randn(gradient.to_local().shape, generator=generator))
            gradients.append(gradient)
        for i in (2, 3):  # the same on both tp ranks, as replicated ones are
            generator = torch.Generator().manual_seed(10 * i + mesh["dp"].get_local_rank())
            local = gradients[i].to_local()
            local.copy_(torch.randn(local.shape, generator=generator))
        whole = torch.cat([gradient.full_tensor().flatten() for gradient in gradients])
        norm = measure_norm(gradients, mesh["pp"])
        torch.testing.assert_close(norm, whole.norm())
        clip_gradients(gradients, 1.5, norm)
        clipped = torch.cat([gradient.full_tensor().flatten() for gradient in gradients])
        torch.testing.assert_close(clipped, whole * 1.5 / (whole.norm() + 1e-6))

    run_ranks(run, 4)


def test_stages_of_the_pipeline_are_added_up():
    def run() -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, distribute_tensor

        from trainer.parallel.gradnorm import clip_gradients, measure_norm

        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
        mine = [3.0, 4.0][dist.get_rank()]  # a number: a tensor would be the gradient's own storage
        gradient = distribute_tensor(torch.tensor(mine), mesh["dp"], [Replicate()], src_data_rank=None)
        norm = measure_norm([gradient], mesh["pp"])
        assert norm.item() == 5.0
        clip_gradients([gradient], 10.0, norm)  # small enough already
        assert gradient.to_local().item() == mine
        clip_gradients([gradient], 2.5, norm)
        torch.testing.assert_close(gradient.to_local().item(), mine / 2, rtol=1e-5, atol=0)

    run_ranks(run, 2)
