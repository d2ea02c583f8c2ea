"""Where the time of each step went, exactly: the parts of a step sum to it, to the nanosecond.

    step = compute + exposed communication + exposed copies + idle
    exposed communication = transfer, per collective + straggler (waiting for the last rank)
    idle = data wait + host wait + launch wait + kernel wait + other

In a pipeline the exposed point-to-point communication is the bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratlab.analysis.dividing.calls import CallKey, CallKind, Calls
from stratlab.analysis.dividing.collective_names import POINT_TO_POINT
from stratlab.analysis.dividing.exposure import IDLE, SHARES, Exposure, build_waits
from stratlab.analysis.dividing.matching import Match
from stratlab.analysis.dividing.segments import Segments
from stratlab.traces.intervals import Intervals, Times, covered_within, intersect


@dataclass(frozen=True)
class Measured:
    """One rank's trace, reduced: what is left to find out needs the other ranks. One entry per segment, ns."""

    segments: Segments
    times: dict[str, Times]  # by SHARES and IDLE
    exposed: dict[CallKey, Intervals]
    calls: Calls


@dataclass(frozen=True)
class Partition:
    """One entry per segment, ns. `times`: SHARES, IDLE, `span`, `straggler`, `bubble`; `transfer` per collective."""

    times: dict[str, Times]
    transfer: dict[CallKey, Times]
    exposed: dict[CallKey, Times]
    exposed_wait: dict[CallKey, Times]


def build_measured(segments: Segments, exposure: Exposure, calls: Calls) -> Measured:
    """Sums of the sets per segment; only the exposed communication is kept as it is."""
    spans = segments.starts, segments.ends
    times = {name: covered_within(exposure.sets[name], *spans) for name in (*SHARES, *IDLE)}
    return Measured(segments, times, exposure.collectives, calls)


def build_partition(measured: Measured, matches: Mapping[CallKind, Match], is_pipeline: bool) -> Partition:
    """Splits the exposed communication into transfer and waiting."""
    segments = measured.segments
    spans = segments.starts, segments.ends
    waits = build_waits(measured.calls, {kind: match.shortest for kind, match in matches.items()})
    exposed = {key: covered_within(part, *spans) for key, part in measured.exposed.items()}
    exposed_wait = {
        key: covered_within(intersect(part, waits), *spans) for key, part in measured.exposed.items()
    }
    transfer = {key: exposed[key] - exposed_wait[key] for key in exposed}
    nothing = segments.starts * 0
    bubble = [key for key in transfer if is_pipeline and key.collective == POINT_TO_POINT]
    times = measured.times | {
        "span": segments.ends - segments.starts,
        "bubble": sum((exposed[key] for key in bubble), nothing),
        "straggler": sum((exposed_wait[key] for key in exposed_wait if key not in bubble), nothing),
    }
    return Partition(
        times, {key: v for key, v in transfer.items() if key not in bubble}, exposed, exposed_wait
    )


def sum_parts(partitions: Sequence[Partition]) -> dict[tuple[str, str, str], int]:
    """Total ns of every part over all ranks and steps: (part, collective, axis) -> ns, in the order of a reader.

    The values sum to the steps' own total.
    """
    totals: dict[tuple[str, str, str], int] = {("compute", "", ""): 0}
    for partition in partitions:
        for key, times in partition.transfer.items():
            where = ("comm", key.collective, key.axis)
            totals[where] = totals.get(where, 0) + int(times.sum())
    names = {"straggler": "straggler", "bubble": "bubble", "copy_exposed": "copy", "data_wait": "data"}
    names |= {
        "host_wait": "host",
        "launch_wait": "launch",
        "kernel_wait": "kernel_wait",
        "other_idle": "other_idle",
    }
    for name, part in {"compute": "compute", **names}.items():
        totals[part, "", ""] = sum(int(p.times[name].sum()) for p in partitions)
    return totals
