"""Bins of the timeline and of the memory curve."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.analysis.measuring.rank import read_rank_trace
from stratlab.analysis.measuring.timeline import BINS, build_shares
from tests.stratlab.simulated.small import build_gpu_trace


def test_activity_covers_the_steps(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    trace.kernel("warm-up", 3000, 3010, 3900)
    activity = read_rank_trace(0, trace.write(tmp_path / "0.json")).activity
    assert activity.span_ms == pytest.approx(3)
    compute = build_shares(activity.compute, activity.span_ms, 3)
    assert compute.shape == (BINS,)
    assert compute.mean() == pytest.approx(0.65)
    assert compute[:40].max() == 0 and compute[40:100].min() == pytest.approx(1)  # 200 to 500 us
    # on the axis of a slower rank the same work fills half as much
    assert build_shares(activity.communication, activity.span_ms, 6).mean() == pytest.approx(0.15)


def test_memory_curve_keeps_the_peak_per_device(tmp_path: Path) -> None:
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
