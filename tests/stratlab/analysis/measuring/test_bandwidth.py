"""Copies by kind; the bandwidth is bytes over time, not a mean of bandwidths."""

from __future__ import annotations

from pathlib import Path

from stratlab.analysis.measuring.bandwidth import CopyRow, build_copies, name_copy
from stratlab.traces.trace import load_trace
from tests.stratlab.simulated.small import COPY_STREAM, GPU, TraceWriter, build_cpu_trace


def test_bytes_over_time(tmp_path: Path) -> None:
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


def add_copy(trace: TraceWriter, name: str, start: float, end: float, **args: int) -> None:
    category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    trace.add(category, name, 1000 + start, 1000 + end, COPY_STREAM, GPU, stream=COPY_STREAM, **args)


def test_names() -> None:
    names = {"Memcpy DtoH (Device -> Pageable)": "DtoH", "Memcpy PtoP (Device -> Device)": "PtoP"}
    names |= {"CopyHostToDevice": "HtoD", "CopyDeviceToDevice": "DtoD", "FillBuffer": "Memset"}
    names |= {"Memcpy Unknown": "other"}
    assert {name: name_copy(name) for name in names} == names


def test_cpu_traces_have_none(tmp_path: Path) -> None:
    assert build_copies(0, load_trace(build_cpu_trace(0).write(tmp_path / "rank0_trace.json"))) == []
