"""Kernels by name and length: exact sums, numpy's percentiles, counts that add up over ranks."""

from dataclasses import replace

import numpy as np
import pytest

from stratlab.analysis.kernels import (
    EDGES_US,
    CopyRow,
    build_copies,
    build_durations,
    build_kernels,
    find_short_share,
    name_copy,
    sort_collectives,
    sum_durations,
)
from stratlab.analysis.lanes import build_lanes
from stratlab.analysis.measure import measure_traces
from stratlab.analysis.rank import read_rank_trace
from stratlab.analysis.step_rows import BINS, IdleRow, build_idle
from stratlab.traces.trace import load_trace
from tests.stratlab.simulated.small import (
    ALL_REDUCE,
    COMM_STREAM,
    COPY_STREAM,
    GPU,
    TraceWriter,
    add_gpu_step,
    build_gpu_trace,
)


def build(trace, path):
    loaded = load_trace(trace.write(path / "rank0_trace.json"))
    lanes = build_lanes(loaded)
    return build_kernels(3, loaded, lanes), build_durations(loaded, lanes)


def test_rows(tmp_path):
    trace, lengths_us = build_gpu_trace(0, steps=0), np.array([5.0, 1.5, 100.25, 7.0, 9.0, 40.0])
    for i, duration in enumerate(lengths_us):
        trace.kernel("gemm", 1000 * i + 10, 1000 * i + 20, 1000 * i + 20 + duration)
    trace.kernel(ALL_REDUCE, 6000, 6010, 6210, stream=20)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 6300, 6310, 6311, stream=COPY_STREAM)
    rows, _ = build(trace, tmp_path)
    assert [(row.name, row.type, row.count) for row in rows] == [
        (ALL_REDUCE, "comm", 1),
        ("gemm", "compute", 6),
        ("Memcpy HtoD (Pinned -> Device)", "copy", 1),
    ]
    gemm = rows[1]
    assert gemm.rank == 3 and (gemm.sum_ms, gemm.max_us) == (0.16275, 100.25)
    assert (gemm.mean_us, gemm.p50_us) == pytest.approx((lengths_us.mean(), np.percentile(lengths_us, 50)))
    assert gemm.p95_us == pytest.approx(np.percentile(lengths_us, 95))
    assert [row.pct for row in rows] == pytest.approx([100 * x / 363.75 for x in (200, 162.75, 1)])


def test_durations_count_by_length(tmp_path):
    trace = build_gpu_trace(0, steps=0)
    trace.label("## Training Step 1 ##", 1, 500)
    for i, duration in enumerate((0.0, 0.05, 9.999, 10.0, 10.001, 99.0)):
        trace.kernel("gemm", 100 * i + 10, 100 * i + 20, round(100 * i + 20 + duration, 3))
    trace.kernel(ALL_REDUCE, 300, 310, 20_000_310, stream=20)
    trace.kernel("Memcpy DtoH (Device -> Pinned)", 301, 310, 311, stream=COPY_STREAM)
    _, durations = build(trace, tmp_path)
    ten = EDGES_US.index(10.0)
    assert durations.compute[0] == 2, "what is shorter than the first edge counts there"
    assert durations.compute[ten - 1 : ten + 1] == [1, 2], "a bin begins at its edge"
    assert durations.comm[-1] == 1 and sum(durations.comm) == sum(durations.copy) == 1
    assert sum(durations.kernels) == 7 and durations.short == 3
    assert durations.in_steps == 6, "the last one was launched after the step, the copy is none"
    assert find_short_share(durations.kernels) == pytest.approx(100 * 3 / 7)
    both = sum_durations([durations, durations])
    assert both.kernels == [2 * n for n in durations.kernels]
    assert (both.short, both.in_steps, sum(both.copy), both.edges_us) == (6, 12, 2, EDGES_US)


def test_bytes_over_time(tmp_path):
    trace = TraceWriter(0)
    for start, end, size in (
        (0, 1000, 20_000_000),
        (2000, 2001, 1_000),
    ):  # 20 GB/s for long, 1 GB/s for short
        add_copy(trace, "Memcpy HtoD (Pinned -> Device)", start, end, bytes=size)
    add_copy(trace, "Memcpy HtoD (Pageable -> Device)", 3000, 3999, bytes=0)
    add_copy(trace, "Memcpy DtoD (Device -> Device)", 4000, 4100)
    add_copy(trace, "Memcpy DtoD (Device -> Device)", 4200, 4300, bytes=5)
    add_copy(trace, "Memset (Device)", 5000, 5000, bytes=64)
    trace.kernel("gemm", 6000, 6010, 6020)
    assert build_copies(5, load_trace(trace.write(tmp_path / "rank0_trace.json"))) == [
        CopyRow(5, "HtoD", 3, 20_001_000, 2.0, 10.0005),
        CopyRow(5, "DtoD", 2, None, 0.2, None),  # one does not tell its size
        CopyRow(5, "Memset", 1, 64, 0.0, None),  # no time
    ]


def add_copy(trace, name, start, end, **args):
    category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    trace.add(category, name, 1000 + start, 1000 + end, COPY_STREAM, GPU, stream=COPY_STREAM, **args)


def test_names():
    names = {"Memcpy DtoH (Device -> Pageable)": "DtoH", "Memcpy PtoP (Device -> Device)": "PtoP"}
    names |= {"CopyHostToDevice": "HtoD", "CopyDeviceToDevice": "DtoD", "FillBuffer": "Memset"}
    names |= {"Memcpy Unknown": "other"}
    assert {name: name_copy(name) for name in names} == names


def read_idle(trace, folder):
    loaded = load_trace(trace.write(folder / "rank0_trace.json"))
    return build_idle(2, loaded, build_lanes(loaded))


@pytest.mark.parametrize(
    ("launch", "start", "expected"),
    [
        (201, 290, (0.09, 0, 0)),  # launched 1 us after the stream fell idle
        (200, 229.999, (0, 0.029999, 0)),
        (199, 230, (0, 0, 0.03)),
        (150, 900, (0, 0, 0.7)),
        (150, 180, (0, -0.02, 0)),  # overlaps, which HTA books here
    ],
)
def test_cause(tmp_path, launch, start, expected):
    trace = TraceWriter(0)
    trace.kernel("gemm", 90, 100, 200)
    trace.kernel("gemm", launch, start, 1000)
    assert read_idle(trace, tmp_path) == [IdleRow(2, 0, 7, *expected)]


def test_streams_are_apart_and_without_launch_is_not_the_host(tmp_path):
    trace = TraceWriter(0)
    trace.kernel("gemm", 1, 10, 20, stream=20)
    trace.kernel("gemm", 1, 20, 100, stream=7)
    trace.add("kernel", "gemm", 30, 40, 20, GPU, device=0, stream=20)  # no launch in the trace
    trace.add("kernel", "gemm", 200, 210, 20, GPU, device=0, stream=20)
    assert read_idle(trace, tmp_path) == [IdleRow(2, 0, 7, 0, 0, 0), IdleRow(2, 0, 20, 0, 0.01, 0.16)]


def test_memory_curve_keeps_the_peak_per_device(tmp_path):
    trace = build_gpu_trace(0)
    peaks = {997: 4096, 2000: 4097, 3003: 4098}
    for i in range(5000):
        trace.memory(5000.5 + i / 10, peaks.get(i, i % 100) << 20, 8192 << 20)
    trace.memory(5100.5, 7 << 20, 0, device_type=0)
    points = read_rank_trace(0, trace.write(tmp_path / "0.json")).memory
    assert {point.device for point in points} == {"cpu", "cuda:0"}
    cuda = [point for point in points if point.device == "cuda:0"]
    assert len(cuda) == BINS
    high = [point for point in cuda if point.allocated_mib > 100]
    assert [point.allocated_mib for point in high] == [4096, 4097, 4098]
    assert [point.t_ms for point in high] == pytest.approx([0.0997, 0.2, 0.3003])
    assert {point.reserved_mib for point in cuda} == {8192}
    assert [point.t_ms for point in cuda] == sorted(point.t_ms for point in cuda)
    assert [(p.allocated_mib, p.reserved_mib) for p in points if p.device == "cpu"] == [(7, None)]


AXES = {"dp_replicate": 2, "dp_shard": 1}


def measure(folder, traces, axes=AXES):
    files = {rank: trace.write(folder / f"{rank}.json") for rank, trace in enumerate(traces)}
    return [row for rank in measure_traces(files, axes).ranks for row in rank.collectives]


def test_late_rank_waits_for_nobody_and_the_others_for_it(tmp_path):
    early, late = measure(tmp_path, [build_gpu_trace(0), build_gpu_trace(1, comm_start=700)])
    assert early.name == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert (early.collective, early.axis, early.bytes) == ("all_reduce", "dp_replicate", None)
    assert (early.count, early.total_ms, early.wait_ms) == (3, 0.9, 0.3)
    assert (late.count, late.total_ms, late.wait_ms) == (3, 0.6, 0.0)
    assert (early.arrived_last, late.arrived_last) == (0, 3)
    # it waited from 600 to 700 of each step, and compute covered that: nothing of the waiting is exposed
    assert (early.exposed_ms, early.exposed_wait_ms) == (0.3, 0.0)
    shorter = replace(early, name="a", total_ms=0.8)
    assert sort_collectives([shorter, late, early]) == [early, late, shorter], "by its longest rank"


def grouped(rank, groups, told=True):
    """One step in which the rank calls an all-gather per axis; values: ranks of its group, start of the call."""
    trace = TraceWriter(rank)
    add_gpu_step(trace, 10, 1000)
    for i, (axis, (ranks, start)) in enumerate(groups.items()):
        name = "ncclDevKernel_AllGather_RING_LL(x)"
        trace.kernel(name, 1430 + i, 1000 + start, 2400 + 100 * i, COMM_STREAM + 1 + i)
        if told:
            said = {"Collective name": "_allgather_base", "Process Group Name": str(i)}
            said |= {"Process Group Description": f"mesh_{axis}", "Process Group Ranks": str(ranks)}
            said |= {"In msg nelems": 100, "Out msg nelems": 200, "dtype": "BFloat16"}
            trace.events[-1]["args"] |= said
    trace.label("## Training Step 11 ##", 2000, 2400)
    trace.kernel("tail", 2001, 2600, 2700)
    return trace


def test_groups_are_matched_apart_and_named_by_their_axis(tmp_path):
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
