"""Who waited for whom, and in which process group."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stratlab.analysis.collective_calls import CallKey, CallKind, Calls, Matching
from stratlab.analysis.kernels import CollectiveRow, sort_collectives
from stratlab.analysis.lanes import name_collective
from stratlab.analysis.measure import measure_traces
from tests.stratlab.simulated.small import COMM_STREAM, TraceWriter, add_gpu_step, build_gpu_trace

AXES = {"dp_replicate": 2, "dp_shard": 1}


def measure(folder: Path, traces: list[TraceWriter], axes: dict[str, int] = AXES) -> list[CollectiveRow]:
    files = {rank: trace.write(folder / f"{rank}.json") for rank, trace in enumerate(traces)}
    return [row for rank in measure_traces(files, axes).ranks for row in rank.collectives]


def test_late_rank_waits_for_nobody_and_the_others_for_it(tmp_path: Path) -> None:
    early, late = measure(tmp_path, [build_gpu_trace(0), build_gpu_trace(1, comm_start=700)])
    assert early.name == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert (early.collective, early.axis, early.bytes) == ("all_reduce", "dp_replicate", None)
    assert (early.count, early.total_ms, early.wait_ms) == (3, 0.9, 0.3)
    assert (late.count, late.total_ms, late.wait_ms) == (3, 0.6, 0.0)
    assert (early.arrived_last, late.arrived_last) == (0, 3)
    # it waited from 600 to 700 of each step, and compute covered that: nothing of the waiting is exposed
    assert (early.exposed_ms, early.exposed_wait_ms) == (0.3, 0.0)


def grouped(rank: int, groups: dict[str, tuple[list[int], float]], told: bool = True) -> TraceWriter:
    """One step in which the rank calls an all-gather per axis; values: ranks of its group, start of the call."""
    trace = TraceWriter(rank)
    add_gpu_step(trace, 10, 1000)
    for i, (axis, (ranks, start)) in enumerate(groups.items()):
        name = "ncclDevKernel_AllGather_RING_LL(x)"
        trace.kernel(name, 1430 + i, 1000 + start, 2400 + 100 * i, COMM_STREAM + 1 + i)
        if told:
            said: dict[str, Any] = {"Collective name": "_allgather_base", "Process Group Name": str(i)}
            said |= {"Process Group Description": f"mesh_{axis}", "Process Group Ranks": str(ranks)}
            said |= {"In msg nelems": 100, "Out msg nelems": 200, "dtype": "BFloat16"}
            trace.events[-1]["args"] |= said
    trace.label("## Training Step 11 ##", 2000, 2400)
    trace.kernel("tail", 2001, 2600, 2700)
    return trace


def test_groups_are_matched_apart_and_named_by_their_axis(tmp_path: Path) -> None:
    """Ranks 0 1 and 2 3 shard, ranks 0 2 and 1 3 replicate; each group has its own late rank."""
    shard, replicate = (
        {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]},
        {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]},
    )
    late = {
        "dp_shard": {0: 1000.0, 1: 1100.0, 2: 1000.0, 3: 1000.0},
        "dp_replicate": dict.fromkeys(range(4), 1000.0),
    }
    late["dp_replicate"][2] = 1250.0
    traces = [
        grouped(
            r,
            {
                "dp_shard": (shard[r], late["dp_shard"][r]),
                "dp_replicate": (replicate[r], late["dp_replicate"][r]),
            },
        )
        for r in range(4)
    ]
    rows = measure(tmp_path, traces, {"dp_replicate": 2, "dp_shard": 2})
    found = {(r.axis, r.rank): r for r in rows if r.collective == "all_gather"}
    assert {key: row.wait_ms for key, row in found.items()} == {
        ("dp_shard", 0): 0.1, ("dp_shard", 1): 0.0, ("dp_shard", 2): 0.0, ("dp_shard", 3): 0.0,
        ("dp_replicate", 0): 0.25, ("dp_replicate", 1): 0.0, ("dp_replicate", 2): 0.0, ("dp_replicate", 3): 0.0,
    }  # fmt: skip
    assert {key for key, row in found.items() if row.arrived_last} == {("dp_shard", 1), ("dp_replicate", 2)}
    assert {row.bytes for row in found.values()} == {400}


def test_several_groups_that_nobody_tells_apart_are_not_matched(tmp_path: Path) -> None:
    traces = [grouped(r, {"dp_shard": ([0, 1], 1000.0)}, told=False) for r in range(2)]
    rows = measure(tmp_path, traces, {"dp_replicate": 2, "dp_shard": 2})
    assert {(row.wait_ms, row.arrived_last, row.axis) for row in rows} == {(None, None, None)}


def calls(rank: int, name: str, *durations: int) -> Calls:
    kind = CallKind(CallKey(name_collective(name), name, ""), "")
    starts = np.arange(len(durations), dtype=np.int64) * 100
    ends = starts + np.array(durations)
    return Calls(rank, [kind], np.zeros(len(durations), np.int32), starts, ends, np.full(len(durations), -1))


@pytest.mark.parametrize(
    ("second", "one_group"),
    [
        ([calls(1, "gloo:all_reduce", 3)], True),  # another number of calls
        ([calls(1, "gloo:broadcast", 3, 4)], True),  # not on every rank
        ([], True),  # nobody to wait for
        ([calls(1, "gloo:all_reduce", 3, 4)], False),  # several process groups
    ],
)
def test_calls_that_cannot_be_matched(second: list[Calls], one_group: bool) -> None:
    matching = Matching(one_group)
    for item in [calls(0, "gloo:all_reduce", 1, 2), *second]:
        matching.apply(item)
    assert matching.take() == {}


def test_one_name_per_collective() -> None:
    names = {
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
        "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)": "reduce_scatter",
        "_allgather_base": "all_gather",
        "gloo:reduce_scatter": "reduce_scatter",
        "ncclDevKernel_SendRecv(x)": "send_recv",
        "gloo:recv": "send_recv",
        "alltoall_base": "all_to_all",
        "ncclMystery(int)": "ncclMystery",
    }
    assert {text: name_collective(text) for text in names} == names


def test_the_longest_collective_comes_first_with_all_its_ranks() -> None:
    rows = [("a", 1.0, 0), ("b", 5.0, 0), ("a", 2.0, 1), ("b", 0.5, 1)]
    made: list[Any] = [
        SimpleNamespace(name=name, axis=None, total_ms=ms, rank=rank) for name, ms, rank in rows
    ]
    assert [(row.name, row.rank) for row in sort_collectives(made)] == [
        ("b", 0),
        ("b", 1),
        ("a", 0),
        ("a", 1),
    ]
