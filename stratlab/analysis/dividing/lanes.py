"""What ran when: compute, communication and copies of one rank, on its GPU or, without one, on the host.

GPU: an event is communication by its name or because it names a collective; so is a copy, which else is told by its
category. It belongs to the step in whose label its
launch lies (kernel -> launch by correlation id); the label decides, not the thread, so kernels launched by
autograd threads count too. What was launched before the recording began belongs to no step: the first one begins when
it has ended.
CPU: operators, without those of a backend's own threads; communication is what the backends write as `gloo:all_reduce`
and the like. This is host operator
time and says nothing about a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stratlab.analysis.dividing.collective_names import COMMUNICATION_KERNEL, COMMUNICATION_LABEL
from stratlab.analysis.dividing.launches import find_around, find_entries, find_launches
from stratlab.traces.events import COPY_CATEGORIES, OPERATOR_CATEGORIES
from stratlab.traces.intervals import Intervals, Times, build_union, is_within
from stratlab.traces.labels import PROFILER_STEP, STEP
from stratlab.traces.trace import BEFORE, LABEL_CATEGORIES, UNTOLD, Mask, Trace

Source = Literal["gpu", "cpu"]

# Not computation: entering a collective, and autograd's wrappers, whose own time is hooks that wait for one
# (FSDP waits inside RegisterPostBackwardFunctionBackward).
NO_COMPUTE_OP = re.compile(
    r"^(c10d::|_c10d|record_param_comms|autograd::engine|torch::autograd::)|Backward\d*$"
    r"|^(## |ProfilerStep#|enumerate\(|Optimizer\.)"  # labels, which writers of 2021 call operators
)


@dataclass(frozen=True)
class Lanes:
    """Events and their kinds on the time line on which they ran. Times in ns."""

    source: Source
    event: NDArray[np.int32] | Times  # which events of the trace these are
    starts: Times
    ends: Times
    issued: Times  # when the host launched the event; on the host itself, its start
    launched: Times  # when the launching call had ended; on the host itself, the event's start
    is_compute: Mask
    is_communication: Mask
    is_copy: Mask
    names: list[str]
    name: NDArray[np.int32]
    entry: Times  # what the event, or the record around its launch, says: into `communication`; -1 = nothing
    label: NDArray[np.int32]  # of a collective around its launch, into `names`; -1 = none
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
        """Time covered by the chosen events."""
        return build_union(self.starts[chosen], self.ends[chosen])

    def issued_within(self, low: int, high: int) -> Times:
        """The events that the host issued in [low, high), in that order."""
        return self._order[slice(*np.searchsorted(self._issued, [low, high]))]

    def extent(self) -> tuple[int, int]:
        """From the first event's start to the last one's end."""
        return int(self.starts.min()), int(self.ends.max())

    def settle(self, at: Times) -> Times:
        """When the lane had ended what was issued before each point of the host's time, but not before it: on a GPU a
        step begins and ends there. On the host itself that is the point."""
        if self.source == "cpu" or not len(self._issued):
            return at
        before = np.searchsorted(self._issued, at, side="left")
        return np.where(before > 0, np.maximum(at, self._done[np.maximum(before - 1, 0)]), at)


def build_lanes(trace: Trace) -> Lanes:
    """GPU lanes if the trace holds any GPU event, else the host's."""
    return _build_gpu_lanes(trace) if len(trace.gpu) else _build_cpu_lanes(trace)


def _build_gpu_lanes(trace: Trace) -> Lanes:
    gpu = trace.gpu
    launches = find_launches(trace)
    starts, issued = trace.ts[gpu], launches.start
    own = find_entries(trace, gpu)
    around, label = find_around(trace, launches)
    communicates = _named(trace, gpu, COMMUNICATION_KERNEL) | (own >= 0)
    copies = trace.in_category(COPY_CATEGORIES)[gpu]
    return Lanes(
        source="gpu",
        event=gpu,
        starts=starts,
        ends=trace.end[gpu],
        issued=np.where(issued == UNTOLD, starts, issued),
        launched=np.where(issued == UNTOLD, starts, launches.end),
        is_compute=~communicates & ~copies,
        is_communication=communicates,
        is_copy=copies & ~communicates,
        names=trace.names,
        name=trace.name[gpu],
        entry=np.where(own >= 0, own, around),
        label=label,
        in_flight=int((issued == BEFORE).sum()),
        unlaunched=int((issued == UNTOLD).sum()),
    )


def _named(trace: Trace, events: NDArray[np.int32], pattern: re.Pattern[str]) -> Mask:
    """Only of these: a mask over all events would cost as much as the trace."""
    return np.array([bool(pattern.search(name)) for name in trace.names], bool)[trace.name[events]]


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
    return Lanes(
        source="cpu",
        event=used,
        starts=trace.ts[used],
        ends=trace.end[used],
        issued=trace.ts[used],
        launched=trace.ts[used],
        is_compute=computes[used],
        is_communication=communicates[used],
        is_copy=np.zeros(len(used), bool),
        names=trace.names,
        name=trace.name[used],
        entry=np.full(len(used), -1, np.int64),
        label=np.full(len(used), -1, np.int32),
        in_flight=0,
        unlaunched=0,
    )
