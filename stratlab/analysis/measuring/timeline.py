"""What a chart can show of thousands of events: shares and peaks per bin of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stratlab.traces.intervals import Intervals, build_covered_share
from stratlab.traces.trace import MemoryEvents

BINS = 600
DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu"}  # c10::DeviceType


@dataclass(frozen=True)
class Activity:
    """Which share of each of BINS equal parts of the analysed steps a rank computed and communicated."""

    rank: int
    span_ms: float
    compute: NDArray[np.float32]
    communication: NDArray[np.float32]


@dataclass(frozen=True)
class MemoryPoint:
    """The largest totals within one bin of time; `t_ms` counts from the first event of the rank's trace."""

    rank: int
    device: str
    t_ms: float
    allocated_mib: float
    reserved_mib: float | None


def build_activity(rank: int, sets: Mapping[str, Intervals], low: int, high: int) -> Activity:
    """Of one rank from `low` to `high`, ns; `sets` as in `Exposure`."""
    shares = (build_covered_share(sets[name], low, high, BINS) for name in ("compute", "comm"))
    return Activity(rank, (high - low) / 1e6, *(share.astype(np.float32) for share in shares))


def build_shares(shares: NDArray[np.float32], span_ms: float, whole_ms: float) -> NDArray[np.float64]:
    """The shares of a rank on a time line of `whole_ms`, which may be longer than its own: BINS equal parts of it."""
    ends = np.linspace(0.0, whole_ms, BINS + 1)
    busy_ms = np.concatenate([[0.0], np.cumsum(shares, dtype=np.float64)]) * span_ms / BINS
    covered = np.interp(ends, np.linspace(0.0, span_ms, BINS + 1), busy_ms)
    return np.clip(np.diff(covered) * BINS / whole_ms, 0.0, 1.0)


def build_memory_curve(rank: int, memory: MemoryEvents) -> list[MemoryPoint]:
    """At most BINS points per device from the profiler's `[memory]` events; empty without them."""
    points = []
    for kind, number in sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True))):
        mine = (memory.device_type == kind) & (memory.device_id == number) & (memory.allocated >= 0)  # told
        if not mine.any():
            continue
        ts, allocated, reserved = memory.ts[mine], memory.allocated[mine], memory.reserved[mine]
        order = np.argsort(ts, kind="stable")
        name = DEVICES.get(kind, f"device type {kind}") + (f":{number}" if number >= 0 and kind else "")
        for part in np.array_split(order, min(BINS, len(order))):
            peak = part[np.argmax(allocated[part])]
            points.append(
                MemoryPoint(
                    rank,
                    name,
                    float(ts[peak]) / 1e6,
                    float(allocated[peak]) / 2**20,
                    float(reserved[part].max()) / 2**20 if reserved[part].max() > 0 else None,
                )
            )
    return points
