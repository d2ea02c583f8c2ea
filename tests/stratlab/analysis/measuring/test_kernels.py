"""Kernels by name and length: exact sums, numpy's percentiles, counts that add up over ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stratlab.analysis.dividing.lanes import build_lanes
from stratlab.analysis.measuring.kernels import (
    EDGES_US,
    Durations,
    KernelRow,
    build_durations,
    build_kernels,
    build_sum,
    find_median,
    find_short_share,
)
from stratlab.traces.trace import load_trace
from tests.stratlab.simulated.small import (
    ALL_REDUCE,
    COPY_STREAM,
    TraceWriter,
    build_cpu_trace,
    build_gpu_trace,
)


def build(trace: TraceWriter, path: Path) -> tuple[list[KernelRow], Durations]:
    loaded = load_trace(trace.write(path / "rank0_trace.json"))
    lanes = build_lanes(loaded)
    return build_kernels(3, loaded, lanes), build_durations(loaded, lanes)


def test_rows(tmp_path: Path) -> None:
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
    assert gemm.rank == 3
    assert (gemm.sum_ms, gemm.max_us) == (0.16275, 100.25)
    assert (gemm.mean_us, gemm.p50_us) == pytest.approx((lengths_us.mean(), np.percentile(lengths_us, 50)))
    assert gemm.p95_us == pytest.approx(np.percentile(lengths_us, 95))
    assert [row.pct for row in rows] == pytest.approx([100 * x / 363.75 for x in (200, 162.75, 1)])


def test_durations_count_by_length(tmp_path: Path) -> None:
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
    assert sum(durations.kernels) == 7
    assert durations.short == 3
    assert durations.in_steps == 6, "the last one was launched after the step, the copy is none"
    assert find_short_share(durations.kernels) == pytest.approx(100 * 3 / 7)
    both = build_sum([durations, durations])
    assert both.kernels == [2 * n for n in durations.kernels]
    assert (both.short, both.in_steps, sum(both.copy), both.edges_us) == (6, 12, 2, EDGES_US)


def test_median_is_within_a_bin() -> None:
    draw = np.random.default_rng(0)
    for scale in (0.5, 30.0, 4e4):
        lengths_us = draw.lognormal(np.log(scale), 1.0, 10_001)
        counts = np.histogram(lengths_us, EDGES_US)[0]
        assert find_median(counts) == pytest.approx(np.median(lengths_us), rel=0.13)
    assert find_median(np.histogram([20.0], EDGES_US)[0]) == pytest.approx(20, rel=0.13)
    assert find_median([0] * 160) is None and find_short_share([0] * 160) is None


def test_cpu_traces_have_none(tmp_path: Path) -> None:
    rows, durations = build(build_cpu_trace(0), tmp_path)
    assert rows == [] and sum(durations.kernels) == durations.in_steps == 0
