"""Idle time of a stream by cause, each on a stream drawn by hand; hta/test_equality.py compares it with HTA's."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.analysis.measuring.idle import IdleRow, build_idle
from stratlab.traces.trace import load_trace
from tests.stratlab.simulated.small import GPU, TraceWriter


def read(trace: TraceWriter, folder: Path) -> list[IdleRow]:
    return build_idle(2, load_trace(trace.write(folder / "rank0_trace.json")))


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
def test_cause(tmp_path: Path, launch: float, start: float, expected: tuple[float, float, float]) -> None:
    trace = TraceWriter(0)
    trace.kernel("gemm", 90, 100, 200)
    trace.kernel("gemm", launch, start, 1000)
    assert read(trace, tmp_path) == [IdleRow(2, 0, 7, *expected)]


def test_streams_are_apart_and_without_launch_is_not_the_host(tmp_path: Path) -> None:
    trace = TraceWriter(0)
    trace.kernel("gemm", 1, 10, 20, stream=20)
    trace.kernel("gemm", 1, 20, 100, stream=7)
    trace.add("kernel", "gemm", 30, 40, 20, GPU, device=0, stream=20)  # no launch in the trace
    trace.add("kernel", "gemm", 200, 210, 20, GPU, device=0, stream=20)
    assert read(trace, tmp_path) == [IdleRow(2, 0, 7, 0, 0, 0), IdleRow(2, 0, 20, 0, 0.01, 0.16)]


def test_streams_of_two_devices_with_one_number_are_apart(tmp_path: Path) -> None:
    trace = TraceWriter(0)
    for device, start in ((0, 10), (1, 15), (0, 500), (1, 505)):
        trace.add("kernel", "gemm", start, start + 90, 7, device, device=device, stream=7)
    rows = read(trace, tmp_path)
    assert [(row.device, row.stream, row.other_ms) for row in rows] == [(0, 7, 0.4), (1, 7, 0.4)]
