"""What a chart can show of thousands of events: shares and peaks per bin of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stratlab.analysis.lanes import Lanes
from stratlab.traces.intervals import Intervals, Times, build_covered_share, clip
from stratlab.traces.trace import MemoryEvents

BINS = 600
DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu"}  # c10::DeviceType


@dataclass(frozen=True)
class Activity:
    """When a rank computed and communicated; us from the start of its first analysed step."""

    rank: int
    span_us: float
    compute: Intervals
    communication: Intervals


@dataclass(frozen=True)
class MemoryPoint:
    """The largest totals within one bin of time; `t_ms` counts from the first event of the rank's trace."""

    rank: int
    device: str
    t_ms: float
    allocated_mib: float
    reserved_mib: float | None


def build_activity(rank: int, lanes: Lanes) -> Activity:
    """Of one rank; `lanes` has at least one step."""
    steps = [window for window in lanes.windows if window]
    low, high = steps[0].start_us, steps[-1].end_us
    inside = (clip(lanes.union(mask), low, high) for mask in (lanes.is_compute, lanes.is_communication))
    compute, communication = ((starts - low, ends - low) for starts, ends in inside)
    return Activity(rank, high - low, compute, communication)


def build_shares(busy: Intervals, span_us: float) -> Times:
    """Covered share (0 to 1) per bin of [0, span]; shape (BINS,)."""
    return build_covered_share(busy, 0.0, span_us, BINS)


def build_memory_curve(rank: int, memory: MemoryEvents) -> list[MemoryPoint]:
    """At most BINS points per device from the profiler's `[memory]` events; empty without them."""
    points = []
    for kind, number in sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True))):
        mine = (memory.device_type == kind) & (memory.device_id == number)
        ts, allocated, reserved = memory.ts[mine], memory.allocated[mine], memory.reserved[mine]
        order = np.argsort(ts, kind="stable")
        name = DEVICES.get(kind, f"device type {kind}") + (f":{number}" if number >= 0 and kind else "")
        for part in np.array_split(order, min(BINS, len(order))):
            peak = part[np.argmax(allocated[part])]
            points.append(
                MemoryPoint(
                    rank,
                    name,
                    float(ts[peak]) / 1000,
                    float(allocated[peak]) / 2**20,
                    float(reserved[part].max()) / 2**20 if reserved[part].max() > 0 else None,
                )
            )
    return points
