"""What each rank copies, writes and reads of a state that several hold, on 2 to 6 real ranks."""

from __future__ import annotations

import os

import pytest

from tests.ranks import run_ranks

MESHES = {6: [(6,), (2, 3), (1, 2, 3)]}
UNEVEN = [(12, 24), (7, 5), (3, 4), (1, 13), (2, 6), (0, 4)]


def _compare_plain(mesh_sizes):
    """Every pair of placements: the part is DTensor's own, and the parts of all ranks make the tensor again."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    from trainer.checkpoint.state import take_local

    mesh = init_device_mesh("cpu", mesh_sizes)
    kinds = (Shard(0), Shard(1), Replicate())
    for shape in UNEVEN:
        whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)
        for first in kinds:
            for last in kinds if mesh.ndim > 1 else (None,):
                placements = [first, *[Replicate()] * (mesh.ndim - 2), last][: mesh.ndim]
                like = distribute_tensor(whole, mesh, placements)
                part = take_local(whole, like)
                assert torch.equal(part, like.to_local()), (shape, placements)
                layout = {"shape": whole.shape, "stride": whole.stride(), "run_check": False}
                again = DTensor.from_local(part.contiguous(), mesh, placements, **layout)
                assert torch.equal(again.full_tensor(), whole), (shape, placements)


def _compare_fully_shard(mesh_sizes):
    """fully_shard of what tp or ep has split by the first dimension, by the second one, or not at all."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    from trainer.checkpoint.state import take_local

    names = ("replicate", "fsdp", "tp")[-len(mesh_sizes) :]
    mesh = init_device_mesh("cpu", mesh_sizes, mesh_dim_names=names)
    strided = 0
    for rows_per_rank in (6, 5, 1):
        for placement in (Shard(0), Shard(1), Replicate()):
            rows = rows_per_rank * mesh_sizes[-1]
            whole = torch.arange(float(rows * 12)).reshape(rows, 12)
            module = nn.Module()
            module.weight = nn.Parameter(distribute_tensor(whole.clone(), mesh["tp"], [placement]))
            fully_shard(module, mesh=mesh[names[:-1]])
            weight = module.weight
            assert isinstance(weight, DTensor)
            strided += "Strided" in str(weight.placements)
            assert torch.equal(take_local(whole, weight), weight.to_local()), (rows, weight.placements)
            assert torch.equal(weight.full_tensor(), whole), (rows, weight.placements)
    assert strided == (3 if mesh_sizes[-1] > 1 else 0)


def _compare_all(ranks):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for mesh_sizes in MESHES[ranks]:
        _compare_plain(mesh_sizes)
        if len(mesh_sizes) > 1:
            _compare_fully_shard(mesh_sizes)


@pytest.mark.parametrize("ranks", MESHES)
def test_a_part_is_what_the_rank_holds(ranks):
    run_ranks(lambda: _compare_all(ranks), ranks)


def replicated(value: float) -> dict:
    """The same on every rank, as under DDP: 60 tensors of 1000 to 1059 numbers, and what is no tensor."""
    import torch

    tensors = {f"w{i:02}": torch.full((1000 + i,), value + i) for i in range(60)}
    return {"model": tensors, "optimizer": {"lr": value, "step": torch.tensor(value)}}


TOTAL = 4 * sum(range(1000, 1060))


def test_what_all_ranks_hold_is_copied_and_written_by_one_of_them(tmp_path):
    def work() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.saving import write
        from trainer.checkpoint.dcp_files import read_sharded
        from trainer.checkpoint.state import ShardedStaging

        dist.init_process_group("gloo")
        state = replicated(1.0)
        snapshot = ShardedStaging().take(state)
        for tensor in state["model"].values():
            tensor.zero_()  # training goes on
        state["optimizer"]["lr"] = 7.0
        assert TOTAL * 0.45 < snapshot.held_bytes < TOTAL * 0.6
        names = write(snapshot, tmp_path)
        assert names == [".metadata", "__0_0.distcp", "__1_0.distcp"]
        assert {path.name for path in tmp_path.iterdir()} == {*names}
        found = replicated(0.0)
        read_sharded(found, tmp_path)
        assert found["optimizer"] == {"lr": 1.0, "step": torch.tensor(1.0)}
        assert all(torch.equal(found["model"][k], v) for k, v in replicated(1.0)["model"].items())

    run_ranks(work, 2)


def test_the_plan_is_made_once_and_anew_when_one_rank_has_other_tensors():
    def work() -> None:
        import torch
        import torch.distributed as dist

        from trainer.checkpoint.state import ShardedStaging

        dist.init_process_group("gloo")
        gather, talked = dist.all_gather_object, []

        def count(*args, **options) -> None:
            talked.append(1)
            gather(*args, **options)

        dist.all_gather_object = count
        staging, state = ShardedStaging(), replicated(1.0)

        def take() -> int:
            talked.clear()
            staging.take(state)
            return len(talked)

        assert [take(), take(), take()] == [2, 1, 1]
        if os.environ["RANK"] == "1":
            state["model"]["new"] = torch.ones(5)
        assert [take(), take()] == [2, 1]

    run_ranks(work, 2)


def test_a_volume_that_is_full_for_torch_s_writer_is_known(tmp_path):
    def save() -> None:
        import torch
        import torch.distributed as dist

        from stratlab_spec.exit_codes import is_storage_full
        from tests.trainer.saving import write
        from trainer.checkpoint.state import ShardedStaging

        dist.init_process_group("gloo")
        for name in ("__0_0.distcp", ".metadata.tmp"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / name).symlink_to("/dev/full")
            snapshot = ShardedStaging().take({"model": {"w": torch.zeros(1 << 18)}})
            try:
                write(snapshot, folder)
            except Exception as failure:
                assert is_storage_full(failure), failure
            else:
                raise AssertionError("it was written")

    run_ranks(save, 1)
