"""What ranks send in a step: the bytes and operations of every strategy, and of each collective."""

import pytest

from tests.ranks import run_ranks
from tests.trainer.wire_runs import CHOSEN, check, measure_together


@pytest.fixture(scope="module")
def read_run(tmp_path_factory):
    return measure_together(CHOSEN, tmp_path_factory.mktemp("wire"))


@pytest.mark.parametrize("run", CHOSEN, ids=lambda run: run.file)
def test_a_step_sends_what_the_formula_says(run, read_run):
    check(run, read_run(run))


def test_every_collective_is_counted_with_its_own_formula(tmp_path):
    """The calls that a program makes, in a group of three among four, against sizes counted by hand."""

    def call_everything() -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        from trainer.measuring.operators import WireCounter

        dist.init_process_group("gloo")
        rank, group = dist.get_rank(), dist.new_group([0, 1, 2])
        if rank < 3:
            whole, part = torch.ones(12), torch.ones(4)  # 48 and 16 bytes
            with WireCounter() as wire:
                dist.all_reduce(whole, group=group)
                dist.all_gather([torch.ones(4) for _ in range(3)], part, group=group)
                dist.all_gather_into_tensor(torch.ones(12), part, group=group)
                dist.reduce_scatter_tensor(part, whole, group=group)
                dist.broadcast(whole, 0, group=group)
                dist.reduce(whole, 0, group=group)
                dist.all_to_all_single(torch.ones(12), whole, group=group)
                dist.gather(part, [torch.ones(4) for _ in range(3)] if rank == 0 else None, 0, group=group)
                dist.scatter(part, [torch.ones(4) for _ in range(3)] if rank == 0 else None, 0, group=group)
                functional.all_reduce(whole, "sum", group).wait()
                functional.all_gather_tensor(part, 0, group).wait()
                dist.barrier(group=group)  # no bytes
            third = 2 / 3
            expected = {
                "all_reduce": [2, 96], "all_gather": [3, 48], "reduce_scatter": [1, 48],
                "broadcast": [1, 48], "reduce": [1, 48], "all_to_all": [1, 48], "gather": [1, 16],
                "scatter": [1, 16],
            }  # fmt: skip
            assert {kind: list(pair) for kind, pair in wire.operations.items()} == expected
            assert abs(wire.wire_bytes - (2 * third * 96 + 2 * 48 + third * (48 * 4 + 16 * 2))) < 1e-9
            assert sum(count for count, _ in wire.operations.values()) == 11
        with WireCounter() as wire:
            if rank == 0:
                dist.send(torch.ones(3, dtype=torch.bfloat16), 3)
            elif rank == 3:
                dist.recv(torch.ones(3, dtype=torch.bfloat16), 0)
        assert wire.operations == ({"send": (1, 6)} if rank == 0 else {}) and wire.wire_bytes in (0, 6)

    run_ranks(call_everything, 4)


def test_element_types_are_kept_and_a_group_without_a_name_is_nobodys_axis():
    def call() -> None:
        import torch
        import torch.distributed as dist

        from stratlab_spec.layout.axes import Axes
        from trainer.measuring.operators import WireCounter

        dist.init_process_group("gloo")
        with WireCounter() as wire:
            dist.all_reduce(torch.ones(4, dtype=torch.bfloat16))
            dist.all_reduce(torch.ones(1, dtype=torch.float64))  # a single number: a norm, a flag
            dist.all_reduce(torch.ones(4, dtype=torch.int64))
            dist.broadcast(torch.ones(4, dtype=torch.float16), 0)
            whole, part = torch.ones(4, dtype=torch.int8), torch.ones(2, dtype=torch.int8)
            dist.all_gather_into_tensor(whole, part)
            dist.all_to_all_single(torch.ones(2), torch.ones(2))
        assert wire.dtypes == {"reductions": {"bfloat16"}, "gathers": {"int8"}, "exchanges": {"float32"}}
        assert Axes(dp_shard=2).world_axis == "dp_shard" and Axes(tp=2, ep=2).world_axis == "tp"
        assert Axes(dp_shard=2, tp=2).world_axis == Axes().world_axis == "world"
        groups = [None, *(dist.new_group([0, 1], group_desc=name) for name in ("tied", "mesh_efsdp"))]
        with WireCounter() as wire:
            for group in groups:
                dist.all_reduce(torch.ones(3), group=group)
        assert wire.axes == {axis: {"all_reduce": (1, 12)} for axis in ("world", "tied", "dp_shard")}
        assert wire.wire_bytes_per_axis == {"world": 12.0, "tied": 12.0, "dp_shard": 12.0}

    run_ranks(call, 2)
