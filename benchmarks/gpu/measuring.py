"""Time, memory and kernels of a call: by events on a GPU, by the clock on a CPU."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.session import Session

Call = Callable[[], Any]


def free_memory(is_cuda: bool) -> None:
    """Free the last measurement's leftovers on the device."""
    if not is_cuda:
        return
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # of a kernel that failed before
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def measure_time(session: Session, call: Call, *, for_ms: float = 250.0) -> dict[str, float]:
    """Return the median time of a call in ms with its 10th and 90th percentile, and the number of calls."""
    times = sorted(_time_on_device(call, for_ms) if session.is_cuda else _time_on_host(call))
    return {
        "ms": statistics.median(times),
        "ms_p10": times[len(times) // 10],
        "ms_p90": times[9 * len(times) // 10],
        "calls": len(times),
    }


def _time_on_host(call: Call, calls: int = 3) -> list[float]:
    call()
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def _time_on_device(call: Call, for_ms: float, warm: int = 3) -> list[float]:
    import torch

    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once_ms = (time.perf_counter() - began) * 1e3
    calls = int(min(200, max(5, for_ms / max(once_ms, 1e-3))))
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for start, stop in pairs:
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in pairs]


def measure_peak_gib(session: Session, call: Call) -> float | None:
    """Return the GiB that a call adds at its peak to the memory allocated before it; None on a CPU."""
    if not session.is_cuda:
        return None
    import torch

    free_memory(True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def compare_ways(
    session: Session, ways: Mapping[str, Call], *, memory: bool = True, for_ms: float = 120.0
) -> dict[str, Any]:
    """Return time and memory of each implementation, or why it was not measured."""
    found: dict[str, Any] = {}
    for name, way in ways.items():
        if not session.has_time(2):
            found[name] = "no time left"
            continue
        try:
            found[name] = measure_time(session, way, for_ms=for_ms)
            found[name]["peak_gib"] = measure_peak_gib(session, way) if memory else None
        except Exception as failure:  # a way that this version or card does not have
            found[name] = f"{type(failure).__name__}: {failure}"[:200]
        free_memory(session.is_cuda)
    if not any(isinstance(entry, dict) for entry in found.values()):
        raise RuntimeError(f"no way worked: {found}")
    return found


def list_kernels(session: Session, call: Call, longest: int = 6) -> list[str]:
    """Return the names of the device's kernels (operators on a CPU) of one call, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    free_memory(session.is_cuda)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if session.is_cuda else [])
    with profile(activities=activities) as found:
        call()
        if session.is_cuda:
            torch.cuda.synchronize()
    rows = []
    for event in found.key_averages():
        if str(getattr(event, "device_type", "")).endswith("CUDA") == session.is_cuda:
            spent_us = event.self_device_time_total if session.is_cuda else event.self_cpu_time_total
            rows.append((spent_us, event.key[:120]))
    return [f"{us:.0f} us {name}" for us, name in sorted(rows, reverse=True)[:longest]]
