"""What each rank copies, writes and reads of a state that several hold, on 2 to 6 real ranks."""

import os

from tests.ranks import run_ranks


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
        from trainer.checkpoint.deepspeed_files import read_sharded
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
