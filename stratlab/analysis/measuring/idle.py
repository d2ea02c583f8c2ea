"""Idle time of every GPU stream by cause, as Holistic Trace Analysis defines it (`get_idle_time_breakdown`).

A stream is idle between two events that follow each other on it. Unlike the idle time of a step, this counts a stream
as idle while another one works, looks at the whole trace, and gives a gap to one cause as a whole: also what passes
between a launch and the event's start counts as waiting for the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stratlab.analysis.dividing.launches import find_launches
from stratlab.traces.trace import Trace

# HTA's consecutive_kernel_delay: its documentation says nanoseconds, its code compares microseconds
KERNEL_WAIT_BELOW_NS = 30_000


@dataclass(frozen=True)
class IdleRow:
    """One stream of one rank. host: the next event was launched after the stream had fallen idle; kernel: it was in
    the queue and came within 30 us; other: it was in the queue and came later, as after a wait for another stream."""

    rank: int
    device: int | None
    stream: int
    host_wait_ms: float
    kernel_wait_ms: float
    other_ms: float


def build_idle(rank: int, trace: Trace) -> list[IdleRow]:
    """One row per device and stream, ascending; none on CPU traces.

    As in HTA, events of one stream that overlap count as negative kernel wait, and an event without a launch in the
    trace never waited for the host.
    """
    launched = find_launches(trace).start if len(trace.gpu) else trace.gpu
    rows = []
    for device, stream in np.unique(np.stack([trace.device, trace.stream]), axis=1).T:
        mine = np.flatnonzero((trace.device == device) & (trace.stream == stream))
        mine = mine[np.argsort(trace.ts[trace.gpu[mine]], kind="stable")]
        fell_idle = trace.end[trace.gpu[mine[:-1]]]
        gaps = trace.ts[trace.gpu[mine[1:]]] - fell_idle
        by_host = launched[mine[1:]] > fell_idle
        by_kernel = ~by_host & (gaps < KERNEL_WAIT_BELOW_NS)
        sums = (int(gaps[mask].sum()) for mask in (by_host, by_kernel, ~by_host & ~by_kernel))
        rows.append(
            IdleRow(rank, int(device) if device >= 0 else None, int(stream), *(ns / 1e6 for ns in sums))
        )
    return rows
