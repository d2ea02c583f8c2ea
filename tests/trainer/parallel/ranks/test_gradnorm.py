from __future__ import annotations

from tests.ranks import run_ranks


def test_stages_of_the_pipeline_are_added_up():
    def run() -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, distribute_tensor

        from trainer.engines.torch_engine import clip_gradients, whole_norm

        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
        mine = [3.0, 4.0][dist.get_rank()]  # a number: a tensor would be the gradient's own storage
        gradient = distribute_tensor(torch.tensor(mine), mesh["dp"], [Replicate()], src_data_rank=None)
        norm = whole_norm([gradient], "cpu", mesh["pp"])
        assert norm.item() == 5.0
        clip_gradients([gradient], 10.0, norm)  # small enough already
        assert gradient.to_local().item() == mine
        clip_gradients([gradient], 2.5, norm)
        torch.testing.assert_close(gradient.to_local().item(), mine / 2, rtol=1e-5, atol=0)

    run_ranks(run, 2)
