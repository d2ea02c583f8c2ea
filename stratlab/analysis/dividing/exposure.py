"""What of a rank's time was not compute, as disjoint sets: the raw material of the partition of a step.

compute    union of the compute events
exposed    communication that no compute covers, per collective; where several run at once the first in
           alphabetical order counts
copies     copies that neither compute nor communication covers
idle       the rest, split: data (under the host's data label), then by what the lane waited for:
           host    until the host began to launch the next event
           launch  from there until the event started; or inside the launch of an event that was begun earlier
           kernel  the event was queued, and the gap is short
           other   the event was queued
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stratlab.analysis.dividing.calls import CallKey, CallKind, Calls
from stratlab.analysis.dividing.lanes import Lanes
from stratlab.traces.intervals import Intervals, Times, build_empty, build_union, intersect, join, subtract

KERNEL_WAIT_BELOW_NS = 30_000  # of an event that waited in the queue; as in idle.py
SHARES = ("compute", "comm", "comm_overlap", "comm_exposed", "copy", "copy_exposed", "idle")
IDLE = ("data_wait", "host_wait", "launch_wait", "kernel_wait", "other_idle")


@dataclass(frozen=True)
class Exposure:
    """Sets in ns. `sets` has every name of SHARES and IDLE; `collectives` parts `comm_exposed` without overlap."""

    sets: dict[str, Intervals]
    collectives: dict[CallKey, Intervals]


def build_exposure(lanes: Lanes, calls: Calls, data_labels: Intervals, low: int, high: int) -> Exposure:
    """Of the time [low, high]; `data_labels` are on the host."""
    compute, comm, copy = (lanes.union(m) for m in (lanes.is_compute, lanes.is_communication, lanes.is_copy))
    exposed = subtract(comm, compute)
    copy_exposed = subtract(copy, join(compute, comm))
    whole = np.array([low], np.int64), np.array([high], np.int64)
    idle = subtract(whole, join(join(compute, comm), copy))
    waiting_for_data = intersect(idle, build_union(*data_labels))
    host, launch, kernel = (subtract(part, waiting_for_data) for part in _split_gaps(lanes, idle))
    sets = {
        "compute": compute,
        "comm": comm,
        "comm_overlap": intersect(comm, compute),
        "comm_exposed": exposed,
        "copy": copy,
        "copy_exposed": copy_exposed,
        "idle": idle,
        "data_wait": waiting_for_data,
        "host_wait": host,
        "launch_wait": launch,
        "kernel_wait": kernel,
        "other_idle": subtract(idle, join(join(waiting_for_data, host), join(launch, kernel))),
    }
    return Exposure(sets, _split_exposed(exposed, calls))


def _split_gaps(lanes: Lanes, idle: Intervals) -> tuple[Intervals, Intervals, Intervals]:
    """Host, launch and kernel of each gap, by the event that ends it. With nothing after it, a gap is the host's; so is
    every gap on the host itself: Python and waiting."""
    if lanes.source == "cpu":
        return idle, build_empty(), build_empty()
    starts, ends = idle
    order = np.lexsort((lanes.issued, lanes.starts))  # of those that start together, the one issued first
    begun = lanes.starts[order]
    following = np.searchsorted(begun, ends, side="left")
    inside = following < len(order)
    event = order[np.minimum(following, len(order) - 1)]
    issued = np.where(inside, np.minimum(lanes.issued[event], ends), ends)
    launched = np.where(inside, np.minimum(lanes.launched[event], ends), ends)
    by_host = issued > starts
    until = np.where(by_host, issued, starts)  # here the launch begins
    done = np.where(by_host, ends, np.maximum(launched, starts))  # and here its part of the gap ends
    short = ~by_host & (ends - starts < KERNEL_WAIT_BELOW_NS)
    return build_union(starts, until), build_union(until, done), build_union(done[short], ends[short])


def _split_exposed(exposed: Intervals, calls: Calls) -> dict[CallKey, Intervals]:
    parts: dict[CallKey, Intervals] = {}
    left = exposed
    for key in sorted({kind.key for kind in calls.kinds}):
        mine = calls.of(key)
        parts[key] = intersect(left, build_union(calls.starts[mine], calls.ends[mine]))
        left = subtract(left, parts[key])
    if len(left[0]):  # issued before the first step or between two
        parts[CallKey("unknown", "unknown", "")] = left
    return parts


def build_waits(calls: Calls, shortest: Mapping[CallKind, Times]) -> Intervals:
    """When the rank was in a collective before the last rank came.

    Args:
        shortest: per kind the shortest duration of each call over the ranks of its group, ns.
    """
    low, high = [], []
    for index, kind in enumerate(calls.kinds):
        if kind in shortest:
            mine = calls.kind == index
            low.append(calls.starts[mine])
            high.append(calls.ends[mine] - shortest[kind])
    if not low:
        return build_empty()
    starts, ends = np.concatenate(low), np.concatenate(high)
    return build_union(starts[ends > starts], ends[ends > starts])
