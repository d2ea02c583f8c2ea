"""One recorded step, divided: sets of time, the spans of its phases, and parts that sum to it to the nanosecond.

A rank's time without compute is divided into disjoint sets:

compute    union of the compute events.
exposed    communication that no compute covers, per collective; of several at once the first in alphabetical order
           counts.
copies     copies that neither compute nor communication covers.
idle       the rest, split: data (under the host's data label), then by the cause of the lane's waiting.
           host    until the host began to launch the next event.
           launch  from there until the event started; or inside the launch of an event that was begun earlier.
           kernel  the event was queued, and the gap is short.
           other   the event was queued.

Every step is cut into the spans of its phases, on the time line on which the events ran:

    host   |data|  forward  |   backward   | opt |      labels
    GPU        |..|   forward    |    backward     | opt |   each border moved to the end on the GPU of all events
                                                             issued before it

The spans of a step are disjoint and cover it; the time between two labels is `other`. stratlab_spec/step_parts.py
shows how the parts of a step sum. In a pipeline the exposed point-to-point communication is the bubble.

One recorded step of each rank is kept for drawing: parts of time, phases and collectives. The step is the middle one of
the steps that most ranks have, by their mean length. It is known only after all ranks were read. Until then every step
is kept in BINS equal parts of its time, each with one of STATES. A shorter state takes a part of its own when
remainders of earlier parts suffice, so that the parts of a state sum to its time.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from stratlab.analysis.collective_calls import CallKey, CallKind, Calls, Match
from stratlab.analysis.lanes import POINT_TO_POINT, Lanes
from stratlab.traces.trace import PHASES, Window
from stratlab_spec.step_parts import PARTS
from stratlab_spec.trace_events import (
    Intervals,
    Mask,
    Times,
    build_covered_share,
    build_empty,
    build_union,
    covered_until,
    covered_within,
    intersect,
    join,
    subtract,
)

# HTA's consecutive_kernel_delay: its documentation says nanoseconds, its code compares microseconds
KERNEL_WAIT_BELOW_NS = 30_000  # of an event that waited in the queue
MATCHED = ("straggler", "bubble")  # parts that need the calls of the other ranks
SETS = tuple(part.name for part in PARTS if part.name not in MATCHED)


@dataclass(frozen=True)
class Exposure:
    """Sets in ns. `sets` has every name of SETS; `collectives` parts `comm_exposed` without overlap."""

    sets: dict[str, Intervals]
    collectives: dict[CallKey, Intervals]


def build_exposure(
    lanes: Lanes, calls: Calls, data_labels: Sequence[Intervals], low: int, high: int
) -> Exposure:
    """Divide the time [low, high]; `data_labels`: per step, on the host."""
    compute, comm, copy = (lanes.union(m) for m in (lanes.is_compute, lanes.is_communication, lanes.is_copy))
    exposed = subtract(comm, compute)
    copy_exposed = subtract(copy, join(compute, comm))
    whole = np.array([low], np.int64), np.array([high], np.int64)
    idle = subtract(whole, join(join(compute, comm), copy))
    waiting_for_data = intersect(idle, _join(data_labels))
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


def _join(spans: Sequence[Intervals]) -> Intervals:
    starts, ends = zip(build_empty(), *spans, strict=True)
    return build_union(np.concatenate(starts), np.concatenate(ends))


def _split_gaps(lanes: Lanes, idle: Intervals) -> tuple[Intervals, Intervals, Intervals]:
    """Return host, launch and kernel of each gap, by the event that ends it.

    A gap without a later event is the host's; so is every gap on the host itself: Python and waiting.
    """
    if lanes.source == "cpu":
        return idle, build_empty(), build_empty()
    starts, ends = idle
    order = np.lexsort((lanes.issued, lanes.starts))  # among those with the same start, the first issued
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


def find_waits(calls: Calls, matches: Mapping[CallKind, Match]) -> Intervals:
    """Return when the rank was in a collective before the last rank came."""
    waits = []
    for index, kind in enumerate(calls.kinds):
        if kind in matches:
            mine = calls.kind == index
            waits.append((calls.starts[mine], calls.ends[mine] - matches[kind].shortest))
    return _join(waits)


def find_bubble(keys: Iterable[CallKey], is_pipeline: bool) -> list[CallKey]:
    """Return the calls whose exposed time is the bubble."""
    return [key for key in keys if is_pipeline and key.collective == POINT_TO_POINT]


SPANS = (*PHASES, "other")


@dataclass(frozen=True)
class Segments:
    """Spans in time order. `step` indexes `windows`, `phase` indexes SPANS."""

    windows: list[Window]  # on the lanes' time line; without steps that issued no work
    hosts: list[Window]  # the same steps as the host's labels have them
    starts: Times
    ends: Times
    step: Times
    phase: Times


def build_segments(lanes: Lanes, hosts: list[Window], phases: dict[str, list[Intervals]]) -> Segments:
    """Return `phases` as `build_phase_labels` gives them: per phase and step the labels' times on the host."""
    windows: list[Window] = []
    kept: list[Window] = []
    rows: list[tuple[int, int, int, int]] = []
    for index, host in enumerate(hosts):
        if not len(lanes.issued_within(host.start_ns, host.end_ns)):
            continue
        low, high = (int(t) for t in lanes.settle(np.array([host.start_ns, host.end_ns], np.int64)))
        if host.is_recording:
            low, high = lanes.extent()
        if low >= high:
            continue
        labels = sorted(
            (int(start), int(end), SPANS.index(phase))
            for phase, steps in phases.items()
            for start, end in zip(*steps[index], strict=True)
        )
        at = low
        for start, end, phase in labels:
            begin, stop = (int(t) for t in lanes.settle(np.array([start, end], np.int64)))
            begin, stop = max(begin, at), min(stop, high)
            if begin < stop:
                rows += [(at, begin, len(windows), len(PHASES)), (begin, stop, len(windows), phase)]
                at = stop
        rows.append((at, high, len(windows), len(PHASES)))
        windows.append(Window(host.step, low, high))
        kept.append(host)
    table = np.array([row for row in rows if row[1] > row[0]], np.int64).reshape(-1, 4)
    return Segments(windows, kept, *table.T)


@dataclass(frozen=True)
class MeasuredTrace:
    """One rank's trace, reduced: the remaining facts need the other ranks. One entry per segment, ns."""

    segments: Segments
    times: dict[str, Times]  # by SETS
    exposed: dict[CallKey, Intervals]
    calls: Calls


@dataclass(frozen=True)
class Partition:
    """One entry per segment, ns. `times`: by PARTS and `span`; `transfer` per collective."""

    times: dict[str, Times]
    transfer: dict[CallKey, Times]
    exposed: dict[CallKey, Times]
    exposed_wait: dict[CallKey, Times]


def build_measured(segments: Segments, exposure: Exposure, calls: Calls) -> MeasuredTrace:
    """Return sums of the sets per segment; only the exposed communication is kept unchanged."""
    spans = segments.starts, segments.ends
    times = {name: covered_within(exposure.sets[name], *spans) for name in SETS}
    return MeasuredTrace(segments, times, exposure.collectives, calls)


def build_partition(
    measured: MeasuredTrace, matches: Mapping[CallKind, Match], is_pipeline: bool
) -> Partition:
    """Split the exposed communication into transfer and waiting."""
    segments = measured.segments
    spans = segments.starts, segments.ends
    waits = find_waits(measured.calls, matches)
    exposed = {key: covered_within(part, *spans) for key, part in measured.exposed.items()}
    exposed_wait = {
        key: covered_within(intersect(part, waits), *spans) for key, part in measured.exposed.items()
    }
    transfer = {key: exposed[key] - exposed_wait[key] for key in exposed}
    nothing = segments.starts * 0
    bubble = find_bubble(transfer, is_pipeline)
    times = measured.times | {
        "span": segments.ends - segments.starts,
        "bubble": sum((exposed[key] for key in bubble), nothing),
        "straggler": sum((exposed_wait[key] for key in exposed_wait if key not in bubble), nothing),
    }
    return Partition(
        times, {key: v for key, v in transfer.items() if key not in bubble}, exposed, exposed_wait
    )


def sum_parts(partition: Partition) -> dict[tuple[str, str, str], int]:
    """Return the total ns of every part over all steps: (part, collective, axis) -> ns, in the order of PARTS.

    The values sum to the steps' own total.
    """
    totals: dict[tuple[str, str, str], int] = {}
    for part in PARTS:
        if part.key == "comm":
            for key, times in partition.transfer.items():
                where = ("comm", key.collective, key.axis)
                totals[where] = totals.get(where, 0) + int(times.sum())
        elif part.key:
            totals[part.key, "", ""] = int(partition.times[part.name].sum())
    return totals


BINS = 4096
AT_ONCE = 32  # steps whose shares are in memory, 0.2 MB each
STATES = tuple(part.name for part in PARTS if part.key)
EXPOSED = STATES.index("comm_exposed")

States = NDArray[np.uint8]
"""Indexes of STATES, one per bin."""


@dataclass(frozen=True)
class DrawnCall:
    """One collective, ns since the start of the step; `wait_ns` of it, at its start, for the last rank."""

    name: str
    axis: str
    start_ns: int
    end_ns: int
    wait_ns: int
    bytes: int | None


@dataclass(frozen=True)
class DrawnStep:
    """One step of one rank. `start_ns` on the rank's own clock; `phases`: name, start and end since then."""

    step: int
    start_ns: int
    length_ns: int
    states: States
    phases: list[tuple[str, int, int]]
    calls: list[DrawnCall]


def build_states(sets: Mapping[str, Intervals], windows: Sequence[Window]) -> States:
    """Return the states of every step, shape (steps, BINS); all exposed communication is one state. `sets` as in
    `Exposure`.
    """
    chosen = [np.empty((0, BINS), np.uint8)]
    for first in range(0, len(windows), AT_ONCE):
        some = windows[first : first + AT_ONCE]
        edges = np.stack([np.linspace(w.start_ns, w.end_ns, BINS + 1).astype(np.int64) for w in some])
        shares = np.zeros((len(some), len(STATES), BINS), np.float32)
        for state, name in enumerate(STATES):
            if name not in MATCHED:
                covered = covered_until(sets[name], edges.ravel()).reshape(edges.shape)
                shares[:, state] = np.diff(covered) / np.maximum(np.diff(edges), 1)
        chosen.append(choose_states(shares))
    return np.concatenate(chosen)


def choose_states(shares: NDArray[np.float32]) -> States:
    """Return one state per bin from the shares of each, shape (steps, states, bins): of those that are in the bin the
    one with most time that no bin shows yet.
    """
    present = shares > 0
    chosen = present.argmax(axis=1).astype(np.uint8)
    # a bin with one state only: `owed` is the same after it, but for its rounding
    whole = (shares == 1) & (present.sum(axis=1, keepdims=True) == 1)
    for step in np.flatnonzero(~whole.any(axis=1).all(axis=1)).tolist():
        _choose_shared(shares[step], present[step], whole[step], chosen[step])
    return chosen


def _choose_shared(
    shares: NDArray[np.float32], present: Mask, whole: Mask, chosen: NDArray[np.uint8]
) -> None:
    """Choose the states of the bins of one step that several share, or none."""
    bins = np.flatnonzero(~whole.any(axis=0))
    at, states = np.nonzero(present[:, bins].T)
    latest = np.maximum.accumulate(np.where(whole, np.arange(shares.shape[1]), -1), axis=1)
    columns = states, shares[states, bins[at]], latest[states, bins[at]]
    entries = zip(*(column.tolist() for column in columns), strict=True)
    owed, seen = array("f", bytes(4 * len(shares))), [-1] * len(shares)  # float32, as the shares
    best_states = []
    for place, count in zip(bins.tolist(), np.bincount(at, minlength=len(bins)).tolist(), strict=True):
        best, most = 0, -math.inf
        for state, share, rounded in islice(entries, count):
            if rounded > seen[state]:
                owed[state] += 1
                owed[state] -= 1
            seen[state] = place
            owed[state] += share
            if owed[state] > most:
                best, most = state, owed[state]
        owed[best] -= 1
        best_states.append(best)
    chosen[bins] = best_states


def coarsen(states: States, factor: int) -> States:
    """Return the states of one step, with `factor` times fewer bins."""
    shares = [(states.reshape(-1, factor) == state).mean(axis=1) for state in range(len(STATES))]
    return choose_states(np.array([shares], np.float32))[0]


def choose_step(lengths: Mapping[int, Sequence[int]]) -> int | None:
    """Return the middle one of the steps that most ranks have. `lengths`: step -> its length on each rank."""
    most = max(map(len, lengths.values()), default=0)
    means = sorted((statistics.fmean(each), step) for step, each in lengths.items() if len(each) == most)
    return means[(len(means) - 1) // 2][1] if means else None


def build_drawn_step(
    measured: MeasuredTrace,
    states: States,
    step: int | None,
    origin_ns: int,
    matches: Mapping[CallKind, Match],
    is_pipeline: bool,
) -> DrawnStep | None:
    """Return the drawn step of one rank; None if it does not have the step. `states`: of `build_states`."""
    segments, calls = measured.segments, measured.calls
    index = next((i for i, window in enumerate(segments.windows) if window.step == step), None)
    if index is None:
        return None
    window = segments.windows[index]
    low, high = window.start_ns, window.end_ns
    mine = states[index].copy()
    bubble, waits = find_bubble(measured.exposed, is_pipeline), find_waits(calls, matches)
    exposed_waits = [intersect(part, waits) for key, part in measured.exposed.items() if key not in bubble]
    found = {"bubble": [measured.exposed[key] for key in bubble], "straggler": exposed_waits}
    for name, spans in found.items():
        for span in spans:
            mine[(mine == EXPOSED) & (build_covered_share(span, low, high, BINS) > 0.5)] = STATES.index(name)
    of_step = segments.step == index
    phases = [
        (SPANS[phase], int(start) - low, int(end) - low)
        for phase, start, end in zip(
            segments.phase[of_step], segments.starts[of_step], segments.ends[of_step], strict=True
        )
    ]
    lasting = (calls.ends > low) & (calls.starts < high)
    waiting = np.zeros(len(calls.starts), np.int64)
    for number, kind in enumerate(calls.kinds):
        if kind in matches:
            of_kind = calls.kind == number
            waiting[of_kind] = (calls.ends - calls.starts)[of_kind] - matches[kind].shortest
    drawn = [
        DrawnCall(
            name=(key := calls.kinds[calls.kind[i]].key).collective,
            axis=key.axis,
            start_ns=max(int(calls.starts[i]), low) - low,
            end_ns=min(int(calls.ends[i]), high) - low,
            wait_ns=int(waiting[i]),
            bytes=int(calls.bytes[i]) if calls.bytes[i] >= 0 else None,
        )
        for i in np.flatnonzero(lasting)
    ]
    return DrawnStep(window.step, origin_ns + low, high - low, mine, phases, drawn)
