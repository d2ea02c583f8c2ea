"""Find the compute, communication and copies of one rank, on its GPU or, without one, on the host.

GPU: an event is communication by its name or because it names a collective; so is a copy, which otherwise has its own
category. It belongs to the step whose label contains its launch (kernel -> launch by correlation id). The label
decides, not the thread, so kernels launched by autograd threads count too. Events launched before the recording began
do not belong to a step: the first step begins when they have ended. CPU: operators, except on a backend's own
threads; communication has the backends' names, such as `gloo:all_reduce`. This is host operator time and does not
describe a GPU.

A launch is any host event with the GPU event's correlation id, with any device's runtime. A collective is identified
by the GPU event itself, else by the record (RECORD), the label or the operator around its launch: NCCL carries out an
all-to-all with a kernel named SendRecv.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stratlab.traces.kineto_events import COLLECTIVE_OPERATORS, COPY_CATEGORIES, RECORD
from stratlab.traces.trace import BEFORE, LABEL_CATEGORIES, PROFILER_STEP, UNTOLD, Trace
from stratlab_spec.trace_events import (
    COMMUNICATION_KERNEL,
    COMMUNICATION_LABEL,
    LAUNCH_CATEGORY,
    NO_COMPUTE_OP,
    OPERATOR_CATEGORIES,
    STEP,
    Intervals,
    Mask,
    Times,
    build_union,
    find_distinct,
    is_within,
)

# the first that matches; text in lower case without underscores
KNOWN = (
    ("reduce_scatter", re.compile(r"reducescatter")),
    ("all_reduce", re.compile(r"allreduce")),
    ("all_gather", re.compile(r"allgather")),
    ("all_to_all", re.compile(r"alltoall")),
    ("send_recv", re.compile(r"sendrecv|^send|^recv|:send|:recv|irecv|isend|ptop|peertopeer")),
    ("broadcast", re.compile(r"broadcast")),
    ("reduce", re.compile(r"reduce")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
    ("barrier", re.compile(r"barrier")),
)
POINT_TO_POINT = "send_recv"


def find_collective(text: str) -> str | None:
    """Return `all_reduce` for `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `gloo:all_reduce`, `allreduce`.

    None for names without a collective, as `nccl:coalesced`.
    """
    plain = text.partition("(")[0].lower().replace("_", "")
    return next((name for name, pattern in KNOWN if pattern.search(plain)), None)


def name_collective(text: str) -> str:
    """Return the collective's name; an unknown one keeps its own name without arguments."""
    return find_collective(text) or text.partition("(")[0]


Source = Literal["gpu", "cpu"]
AROUND = (*LABEL_CATEGORIES, *OPERATOR_CATEGORIES)
DEEPEST = 8  # labels around one launch, from the innermost


@dataclass(frozen=True)
class Launches:
    """One entry per event of `trace.gpu`.

    `event` is the trace's event, -1 = none in the trace. Without one, `start` and `end` have the value BEFORE for
    events in flight when the recording began, else UNTOLD.
    """

    event: Times
    start: Times
    end: Times


def find_launches(trace: Trace) -> Launches:
    """Find the launches; of several host events with one correlation id a runtime's call comes first, then the
    earliest.
    """
    wanted = trace.linked_correlation[np.searchsorted(trace.linked, trace.gpu)]
    hosts = ~np.isin(trace.linked, trace.gpu) & (trace.linked_correlation > 0)
    events, ids = trace.linked[hosts], trace.linked_correlation[hosts]
    if not len(events):
        nothing = np.full(len(trace.gpu), UNTOLD, np.int64)
        return Launches(np.full(len(trace.gpu), -1, np.int64), nothing, nothing)
    codes = [i for i, name in enumerate(trace.categories) if LAUNCH_CATEGORY.search(name)]
    calls = np.isin(trace.cat[events], codes)
    first = ids[calls].min() if calls.any() else ids.min()
    order = np.lexsort((trace.ts[events], ~calls, ids))
    events, ids = events[order], ids[order]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    found = ids[at] == wanted
    # the ids of calls rise; for an event without one, the order on its stream decides
    in_flight = np.where(wanted > 0, wanted < first, _precede(trace, found))
    missing = np.where(in_flight, BEFORE, UNTOLD)
    start, end = (np.where(found, times[events[at]], missing) for times in (trace.ts, trace.end))
    return Launches(np.where(found, events[at], -1), start, end)


def _precede(trace: Trace, found: Mask) -> Mask:
    """Return which GPU events start before the first on their stream whose launch was found."""
    starts, before = trace.ts[trace.gpu], np.zeros(len(found), bool)
    if found.all():
        return before
    for _, _, mine in split_streams(trace):
        if (mine & found).any() and not found[mine].all():
            before |= mine & (starts < starts[mine & found].min())
    return before


def split_streams(trace: Trace) -> list[tuple[int, int, Mask]]:
    """Return device, stream and GPU events of each stream, in ascending order."""
    places = [np.unique(ids, return_inverse=True) for ids in (trace.device, trace.stream)]
    (devices, device), (streams, stream) = places
    codes = device * len(streams) + stream
    return [
        (int(devices[code // len(streams)]), int(streams[code % len(streams)]), codes == code)
        for code in find_distinct(codes)
    ]


def find_entries(trace: Trace, events: Times | NDArray[np.int32]) -> Times:
    """Return the entry of each event in `trace.communication`; -1 = it has no entry."""
    index = trace.communication.index
    if not len(index):
        return np.full(len(events), -1, np.int64)
    at = np.minimum(np.searchsorted(index, events), len(index) - 1)
    return np.where(index[at] == events, at, -1)


def find_around(trace: Trace, launches: Launches) -> tuple[Times, NDArray[np.int32]]:
    """Find the record, label or operator around the launch of each GPU event.

    Returns:
        the entry of the record, -1 = none; and the name of the innermost label or operator of a collective, an index
        into `trace.names`, -1 = none.
    """
    records = np.flatnonzero(_named(trace, [name == RECORD for name in trace.names]))
    records = records[find_entries(trace, records) >= 0]
    starting = _named(trace, [_starts_collective(name) for name in trace.names])
    labels = np.flatnonzero(trace.in_category(AROUND) & starting)
    record, label = (_find_innermost(trace, launches.event, found) for found in (records, labels))
    entry = find_entries(trace, np.maximum(record, 0))
    return (
        np.where(record >= 0, entry, -1),
        np.where(label >= 0, trace.name[np.maximum(label, 0)], -1).astype(np.int32),
    )


def _named(trace: Trace, chosen: list[bool], events: Any = slice(None)) -> Mask:
    """Return which of these events have one of the chosen names."""
    return np.array(chosen, bool)[trace.name[events]]


def _starts_collective(name: str) -> bool:
    is_label = COMMUNICATION_LABEL.search(name) or name.startswith(COLLECTIVE_OPERATORS)
    return bool(is_label and find_collective(name))


def _find_innermost(trace: Trace, events: Times, spans: Times) -> Times:
    """Return for each event the last of `spans` to begin on its thread that contains its start; -1 = none, or no
    event.
    """
    found = np.full(len(events), -1, np.int64)
    present = events >= 0
    at, threads = trace.ts[np.maximum(events, 0)], trace.thread[np.maximum(events, 0)]
    for thread in find_distinct(trace.thread[spans]):
        mine = spans[trace.thread[spans] == thread]
        mine = mine[np.lexsort((-trace.end[mine], trace.ts[mine]))]
        here = np.flatnonzero(present & (threads == thread))
        last = np.searchsorted(trace.ts[mine], at[here], side="right") - 1
        for back in range(DEEPEST):
            place = np.maximum(last - back, 0)
            inside = (last - back >= 0) & (trace.end[mine[place]] >= at[here]) & (found[here] < 0)
            found[here[inside]] = mine[place[inside]]
    return found


@dataclass(frozen=True)
class Lanes:
    """Events and their kinds on the time line on which they ran. Times in ns."""

    source: Source
    event: NDArray[np.int32] | Times  # which events of the trace these are
    starts: Times
    ends: Times
    launch: Times  # when its launch began, BEFORE or UNTOLD; on the host itself, the event's start
    issued: Times  # when the host launched the event; on the host itself, its start
    launched: Times  # when the launching call had ended; on the host itself, the event's start
    is_compute: Mask
    is_communication: Mask
    is_copy: Mask
    names: list[str]
    name: NDArray[np.int32]
    entry: Times  # the entry of the event, or of the record around its launch, in `communication`; -1 = none
    label: NDArray[np.int32]  # or operator of a collective around its launch, into `names`; -1 = none
    in_flight: int  # GPU events that were launched before the recording began
    unlaunched: int  # other GPU events without a launch in the trace; they count by their own start
    _order: Times = field(init=False, repr=False)  # by issue
    _issued: Times = field(init=False, repr=False)  # sorted
    _done: Times = field(init=False, repr=False)  # when all that was issued up to there had ended

    def __post_init__(self) -> None:
        order = np.argsort(self.issued, kind="stable")
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_issued", self.issued[order])
        object.__setattr__(self, "_done", np.maximum.accumulate(self.ends[order]))

    def union(self, chosen: Mask | Times | slice = slice(None)) -> Intervals:
        """Return time covered by the chosen events."""
        return build_union(self.starts[chosen], self.ends[chosen])

    def issued_within(self, low: int, high: int) -> Times:
        """Return the events that the host issued in [low, high), in that order."""
        return self._order[slice(*np.searchsorted(self._issued, [low, high]))]

    def extent(self) -> tuple[int, int]:
        """Return the start of the first event and the end of the last."""
        return int(self.starts.min()), int(self.ends.max())

    def settle(self, at: Times) -> Times:
        """Return when the lane had ended all events issued before each point of the host's time, but not before it.

        On a GPU a step begins and ends there. On the host itself the point stays.
        """
        if self.source == "cpu" or not len(self._issued):
            return at
        before = np.searchsorted(self._issued, at, side="left")
        return np.where(before > 0, np.maximum(at, self._done[np.maximum(before - 1, 0)]), at)


def build_lanes(trace: Trace) -> Lanes:
    """Return GPU lanes if the trace holds any GPU event, else the host's."""
    return _build_gpu_lanes(trace) if len(trace.gpu) else _build_cpu_lanes(trace)


def _build(trace: Trace, source: Source, event: Times | NDArray[np.int32], **own: Any) -> Lanes:
    starts, ends, name = (column[event] for column in (trace.ts, trace.end, trace.name))
    whole: dict[str, Any] = {"starts": starts, "ends": ends, "names": trace.names, "name": name}
    return Lanes(source=source, event=event, **whole, **own)


def _build_gpu_lanes(trace: Trace) -> Lanes:
    gpu, launches = trace.gpu, find_launches(trace)
    own, (around, label) = find_entries(trace, gpu), find_around(trace, launches)
    known = [bool(COMMUNICATION_KERNEL.search(name)) for name in trace.names]
    communicates = _named(trace, known, gpu) | (own >= 0)
    copies = trace.in_category(COPY_CATEGORIES)[gpu]
    untold = launches.start == UNTOLD
    return _build(
        trace,
        "gpu",
        gpu,
        launch=launches.start,
        issued=np.where(untold, trace.ts[gpu], launches.start),
        launched=np.where(untold, trace.ts[gpu], launches.end),
        is_compute=~communicates & ~copies,
        is_communication=communicates,
        is_copy=copies & ~communicates,
        entry=np.where(own >= 0, own, around),
        label=label,
        in_flight=int((launches.start == BEFORE).sum()),
        unlaunched=int(untold.sum()),
    )


def _build_cpu_lanes(trace: Trace) -> Lanes:
    label = trace.in_category(LABEL_CATEGORIES)
    communicates = label & trace.matches(COMMUNICATION_LABEL)
    main = trace.thread[label & (trace.matches(STEP) | trace.matches(PROFILER_STEP))]
    computes = trace.in_category(OPERATOR_CATEGORIES) & ~trace.matches(NO_COMPUTE_OP)
    for thread in np.setdiff1d(trace.thread[communicates], main):
        mine = trace.thread == thread
        labels, operators = np.flatnonzero(mine & communicates), np.flatnonzero(mine & computes)
        spans = build_union(trace.ts[labels], trace.end[labels])
        if 2 * is_within(trace.ts[operators], spans).sum() >= len(operators):
            computes &= ~mine  # a backend's own thread: autograd's has a label now and then
    used = np.flatnonzero(communicates | computes)
    return _build(
        trace,
        "cpu",
        used,
        launch=trace.ts[used],
        issued=trace.ts[used],
        launched=trace.ts[used],
        is_compute=computes[used],
        is_communication=communicates[used],
        is_copy=np.zeros(len(used), bool),
        entry=np.full(len(used), -1, np.int64),
        label=np.full(len(used), -1, np.int32),
        in_flight=0,
        unlaunched=0,
    )
