"""The rows of the report: one per rank and step, one per rank, step and phase, and their means; gaps, streams, curves.

Gaps in which the GPU waited for the host and its launches have a kind, because the advice depends on it.

short   many of them, each a small part of the step: the host launches one small event after the other.
first   one long gap before the first event of a step: the host prepares something.
label   long gaps, most of their time under one label of the program.
long    other long gaps, as when the host waits for something else.

The idle time of every GPU stream by cause follows Holistic Trace Analysis (`get_idle_time_breakdown`): a stream is
idle between two consecutive events on it. Unlike the idle time of a step, this counts a stream as idle while another
one works, covers the whole trace, and assigns a gap to one cause as a whole. So the time between a launch and the
event's start also counts as waiting for the host.

The memory curve shows the peaks of thousands of events per bin of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stratlab.analysis.lanes import Lanes, Source, split_streams
from stratlab.analysis.time_breakdown import KERNEL_WAIT_BELOW_NS, SPANS, Partition, Segments
from stratlab.traces.trace import LABEL_CATEGORIES, PHASES, PROFILER_STEP, MemoryEvents, Trace, Window
from stratlab_spec.step_parts import PARTS, SHARES, PartTimes
from stratlab_spec.trace_events import (
    COMMUNICATION_LABEL,
    STEP,
    Intervals,
    Times,
    build_empty,
    build_union,
    clip,
    common_length,
    find_distinct,
    join,
    length,
)

PART_NAMES = [part.name for part in PARTS]


@dataclass(frozen=True, kw_only=True)
class _Step:
    rank: int
    step: int
    source: Source
    step_ms: float
    host_step_ms: float


@dataclass(frozen=True, kw_only=True)
class StepRow(PartTimes, _Step):
    """One step of one rank. `source` names the kind of its times; all times in ms.

    Without a label of data loading, `data_wait_ms` has the value None. Phases: `data_ms` is always host time. The
    others are GPU time of the work issued inside the label (source gpu), or the label's own duration (source cpu);
    None without such a label.
    """

    data_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None


@dataclass(frozen=True, kw_only=True)
class _Phase:
    rank: int
    step: int
    phase: str
    span_ms: float


@dataclass(frozen=True, kw_only=True)
class PhaseRow(PartTimes, _Phase):
    """One phase of one step of one rank, ms; the phases of a step are disjoint and sum to it."""


def build_label_times(
    lanes: Lanes, segments: Segments, numbers: Sequence[int], phases: dict[str, list[Intervals]]
) -> dict[str, list[int]]:
    """Return, per labelled phase and kept step, the time of the label itself, or of the GPU work issued inside it, ns.

    Args:
        numbers: which of the host's steps each kept step is.
    """
    return {
        phase: [_label_ns(phase, lanes, steps[number]) for number in numbers]
        for phase, steps in phases.items()
    }


def _label_ns(phase: str, lanes: Lanes, labels: Intervals) -> int:
    if lanes.source == "cpu" or phase == "data":
        return length(build_union(*labels))
    issued = [lanes.issued_within(int(start), int(end)) for start, end in zip(*labels, strict=True)]
    return length(lanes.union(np.concatenate(issued))) if issued else 0


def build_step_rows(
    rank: int, source: Source, segments: Segments, partition: Partition, labels: dict[str, list[int]]
) -> list[StepRow]:
    """Return one row per kept step."""
    sums = _sum_times(partition, segments.step, len(segments.windows), labels)
    rows = []
    for i, (window, host, times) in enumerate(zip(segments.windows, segments.hosts, sums, strict=True)):
        times["step_ms"] = times.pop("span_ms")
        times["host_step_ms"] = (host.end_ns - max(host.start_ns, 0)) / 1e6
        times |= {f"{p}_ms": labels[p][i] / 1e6 if p in labels else None for p in PHASES}
        rows.append(StepRow(rank=rank, step=window.step, source=source, **times))
    return rows


def build_phase_rows(
    rank: int, segments: Segments, partition: Partition, labels: Collection[str]
) -> list[PhaseRow]:
    """Return one row per phase that a step has, in the order of SPANS. `labels`: the phases that the trace labels."""
    keys = [(window.step, phase) for window in segments.windows for phase in SPANS]
    sums = _sum_times(partition, segments.step * len(SPANS) + segments.phase, len(keys), labels)
    return [
        PhaseRow(rank=rank, step=step, phase=phase, **times)
        for (step, phase), times in zip(keys, sums, strict=True)
        if times["span_ms"]
    ]


def _sum_times(
    partition: Partition, group: Times, count: int, labels: Collection[str]
) -> list[dict[str, Any]]:
    """Return `span_ms` and the fields of PartTimes, summed over the segments of each group."""
    sums = {name: _sum_by(group, partition.times[name], count) for name in ("span", *PART_NAMES)}
    rows: list[dict[str, Any]] = [
        {f"{name}_ms": int(values[i]) / 1e6 for name, values in sums.items()} for i in range(count)
    ]
    return rows if "data" in labels else [row | {"data_wait_ms": None} for row in rows]


def _sum_by(index: Times, values: Times, count: int) -> Times:
    """Return exact sums: bincount would add in float64."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, index, values)
    return sums


TIMES = ("step_ms", "host_step_ms", *(f"{phase}_ms" for phase in PHASES))


def build_means(rows: Sequence[StepRow]) -> dict[str, float | None]:
    """Return means over rows: times per step in ms, shares in percent of the summed step time.

    `comm_overlap_pct` is the share of the communication that compute hides, None without communication. A phase that
    some row lacks has the value None.
    """
    assert rows
    sums = {name: _total(rows, f"{name}_ms") for name in ("step", "comm", "comm_overlap", *SHARES)}
    means = {name: _divide(_total(rows, name), len(rows)) for name in TIMES}
    means |= {f"{name}_pct": _divide(sums[name], sums["step"], 100) for name in SHARES}
    return means | {"comm_overlap_pct": _divide(sums["comm_overlap"], sums["comm"], 100)}


def _total(rows: Sequence[StepRow], name: str) -> float | None:
    values = [getattr(row, name) for row in rows]
    return None if None in values else sum(values)


def _divide(a: float | None, b: float | None, factor: float = 1.0) -> float | None:
    return factor * a / b if a is not None and b else None


SHORT_BELOW_NS, SHORT_SHARE = 1_000_000, 0.05  # and of the step
MOST = 0.5  # of the waiting
WHOLE_SHARE = 0.9  # of the steps
MOST_LABELS = 500  # names; a program with more gives each sample its own

Kind = Literal["short", "first", "label", "long"]


@dataclass(frozen=True)
class Gaps:
    """Waiting for the host and its launches in the steps of a rank, ns. `labels`: long gaps under each label."""

    whole: int = 0
    short: int = 0
    first: int = 0
    longest: int = 0
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str | None:
        """That covers most of the long gaps, and more than half of the waiting; of several the innermost."""
        covering = {name: ns for name, ns in self.labels.items() if ns > MOST * self.whole}
        return min(covering, key=lambda name: covering[name], default=None)

    @property
    def kind(self) -> Kind | None:
        """None without waiting."""
        if not self.whole:
            return None
        if self.short > MOST * self.whole:
            return "short"
        if self.label is not None:
            return "label"
        return "first" if self.first > MOST * self.whole else "long"


def find_labels(trace: Trace) -> dict[str, Intervals]:
    """Return the labels of the program by name, without labels of steps and backends."""
    found: dict[str, Intervals] = {}
    events = np.flatnonzero(trace.in_category(LABEL_CATEGORIES[:1]))
    for code in find_distinct(trace.name[events])[:MOST_LABELS]:
        name = trace.names[code]
        if not any(pattern.search(name) for pattern in (STEP, PROFILER_STEP, COMMUNICATION_LABEL)):
            mine = events[trace.name[events] == code]
            found[name] = build_union(trace.ts[mine], trace.end[mine])
    return found


def build_gaps(
    sets: Mapping[str, Intervals], windows: Sequence[Window], labels: Mapping[str, Intervals]
) -> Gaps:
    """Return the gaps of one rank. `sets` as in `Exposure`."""
    waiting, idle = join(sets["host_wait"], sets["launch_wait"]), sets["idle"]
    whole = short = first = longest = 0
    long_gaps: list[Intervals] = []
    for window in windows:
        mine, nothing = (clip(part, window.start_ns, window.end_ns) for part in (waiting, idle))
        sizes = mine[1] - mine[0]
        is_short = sizes < min(SHORT_BELOW_NS, SHORT_SHARE * (window.end_ns - window.start_ns))
        starts_idle = len(nothing[0]) and nothing[0][0] == window.start_ns
        before = mine[1] <= (nothing[1][0] if starts_idle else window.start_ns)
        whole += int(sizes.sum())
        short += int(sizes[is_short].sum())
        first += int(sizes[before & ~is_short].sum())
        longest = max(longest, int(sizes.max(initial=0)))
        long_gaps.append((mine[0][~is_short], mine[1][~is_short]))
    every = [np.concatenate(side) for side in zip(*long_gaps, strict=True)] if long_gaps else build_empty()
    long_ones = build_union(*every)
    borders = np.array([(window.start_ns, window.end_ns) for window in windows], np.int64).reshape(-1, 2)
    steps = build_union(borders[:, 0], borders[:, 1])
    most = WHOLE_SHARE * length(steps)  # a label around everything has no meaning
    inner = {name: spans for name, spans in labels.items() if common_length(steps, spans) < most}
    under = {name: common_length(long_ones, spans) for name, spans in inner.items()}
    return Gaps(whole, short, first, longest, {name: ns for name, ns in under.items() if ns})


def sum_gaps(gaps: Sequence[Gaps]) -> Gaps:
    """Return the gaps of several ranks; `longest` of any."""
    whole, short, first = (sum(getattr(each, name) for each in gaps) for name in ("whole", "short", "first"))
    labels: Counter[str] = Counter()
    for each in gaps:
        labels.update(each.labels)
    return Gaps(whole, short, first, max((each.longest for each in gaps), default=0), dict(labels))


@dataclass(frozen=True)
class IdleRow:
    """One stream of one rank.

    host: the next event was launched after the stream had become idle. kernel: it was in the queue and came within 30
    us. other: it was in the queue and came later, as after a wait for another stream.
    """

    rank: int
    device: int | None
    stream: int
    host_wait_ms: float
    kernel_wait_ms: float
    other_ms: float


def build_idle(rank: int, trace: Trace, lanes: Lanes) -> list[IdleRow]:
    """Return one row per device and stream, ascending; none on CPU traces.

    As in HTA, events of one stream that overlap count as negative kernel wait, and an event without a launch in the
    trace never waited for the host.
    """
    rows: list[IdleRow] = []
    if lanes.source == "cpu":
        return rows
    for device, stream, of_stream in split_streams(trace):
        mine = np.flatnonzero(of_stream)
        mine = mine[np.argsort(trace.ts[trace.gpu[mine]], kind="stable")]
        fell_idle = trace.end[trace.gpu[mine[:-1]]]
        gaps = trace.ts[trace.gpu[mine[1:]]] - fell_idle
        by_host = lanes.launch[mine[1:]] > fell_idle
        by_kernel = ~by_host & (gaps < KERNEL_WAIT_BELOW_NS)
        sums = (int(gaps[mask].sum()) for mask in (by_host, by_kernel, ~by_host & ~by_kernel))
        rows.append(IdleRow(rank, device if device >= 0 else None, stream, *(ns / 1e6 for ns in sums)))
    return rows


BINS = 600
DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu"}  # c10::DeviceType


@dataclass(frozen=True)
class MemoryPoint:
    """The largest totals within one bin of time; `t_ms` counts from the first event of the rank's trace."""

    rank: int
    device: str
    t_ms: float
    allocated_mib: float
    reserved_mib: float | None


def build_memory_curve(rank: int, memory: MemoryEvents) -> list[MemoryPoint]:
    """Return at most BINS points per device from the profiler's `[memory]` events; empty without them."""
    points = []
    for kind, number in sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True))):
        mine = (memory.device_type == kind) & (memory.device_id == number) & (memory.allocated >= 0)
        if not mine.any():
            continue
        ts, allocated, reserved = memory.ts[mine], memory.allocated[mine], memory.reserved[mine]
        order = np.argsort(ts, kind="stable")
        name = DEVICES.get(kind, f"device type {kind}") + (f":{number}" if number >= 0 and kind else "")
        for part in np.array_split(order, min(BINS, len(order))):
            peak, kept = part[np.argmax(allocated[part])], int(reserved[part].max())
            points.append(
                MemoryPoint(
                    rank=rank,
                    device=name,
                    t_ms=float(ts[peak]) / 1e6,
                    allocated_mib=float(allocated[peak]) / 2**20,
                    reserved_mib=kept / 2**20 if kept > 0 else None,
                )
            )
    return points
