"""Load one rank's trace as numpy columns, in whole nanoseconds, and find the labels of its steps and phases.

Labels mark the start and end of a step and its phases on the host. The trainer writes its own labels. Traces of other
programs have torch's labels, else labels of their training loops.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from stratlab.traces.chunks import TraceError, split_placed
from stratlab.traces.columns import MARK, Columns, Processes, read_processes
from stratlab.traces.kineto_events import GPU_CATEGORIES, UNDECODABLE, Behind, Event, decode_piece
from stratlab.traces.repair import Oddities, decode_head, read_base_ns, repair_piece
from stratlab_spec.trace_events import (
    LABELS,
    STEP,
    Intervals,
    Mask,
    Times,
    build_union,
    find_distinct,
    is_within,
)

LABEL_CATEGORIES = (
    "user_annotation",
    "Operator",
)  # writers of 2021 had one category for labels and operators
NOT_KEPT = frozenset({"Trace"})  # the profiler's own span
OPERATORS = frozenset({"cpu_op"})
STACKS = frozenset({"python_function"})
BEFORE, UNTOLD = -2, -1  # instead of a time: before the recording, not in the trace


@dataclass(frozen=True)
class MemoryEvents:
    """Hold the profiler's `[memory]` instants: totals after each allocation. Bytes; ns like the trace's."""

    ts: Times
    allocated: Times
    reserved: Times
    device_type: Times  # 0 = host
    device_id: Times


@dataclass(frozen=True)
class Communication:
    """Hold the facts of collectives from GPU events and the records around their launches (RECORD).

    One entry per event with any fact. `index` counts the trace's events.
    """

    index: Times
    collective: NDArray[np.int32]  # into `collectives`
    group: NDArray[np.int32]  # into `groups`
    bytes: Times  # the larger of input and output; -1 = unknown
    collectives: list[str]
    groups: list[tuple[str, str, str]]  # process group: name, description, ranks as text


@dataclass(frozen=True)
class Trace:
    """Hold events with a duration as columns; times in ns since the first event; name and cat index the tables."""

    head: dict[str, Any]  # the part before the events
    distributed: dict[str, Any]  # Kineto's distributedInfo: rank, world_size, backend, pg_config
    origin_ns: int  # of the first event, since 1970 if the trace has a base time
    last_ns: int  # when the last event ended, also of Python's stack that is left out
    ts: Times
    end: Times
    name: NDArray[np.int32]
    cat: NDArray[np.int32]
    thread: NDArray[np.int32]
    names: list[str]
    categories: list[str]
    linked: NDArray[np.int32]  # GPU events and their possible launches, in ascending order
    linked_correlation: Times  # joins a GPU event to its launch, one per `linked`; -1 = none
    gpu: NDArray[np.int32]  # the events that ran on a GPU
    device: Times  # one per `gpu`; -1 = none
    stream: Times  # the same
    bytes: Times  # copied bytes, one per `gpu`; -1 = unknown
    communication: Communication
    memory: MemoryEvents
    left_out: int  # events without a usable time (pytorch#188481 writes 0.000)
    odd: Oddities
    of_ascend: bool
    has_stacks: bool  # Python's, also if they are left out
    raw_bytes: int  # unpacked

    def in_category(self, categories: tuple[str, ...]) -> Mask:
        """Return the mask of the events of these categories."""
        return np.isin(self.cat, [i for i, name in enumerate(self.categories) if name in categories])

    def matches(self, pattern: re.Pattern[str]) -> Mask:
        """Return the mask of the events whose names match; each name is matched once."""
        return np.array([bool(pattern.search(name)) for name in self.names], bool)[self.name]


def load_trace(path: Path, operators: bool = True, processes: Processes | None = None) -> Trace:
    """Decode one file completely.

    Args:
        processes: process names of an Ascend trace; None = not read yet.
        operators: False = leave out the host's operators and Python's stack, which are most events, if the trace
            holds GPU events.

    Raises:
        TraceError: not JSON, cut off, empty, above the limits, or without an event of known duration.
    """
    pieces = split_placed(path)
    head = decode_head(next(pieces)[1])
    whole = operators or not head.get("deviceProperties")
    columns = Columns(
        without=NOT_KEPT if whole else NOT_KEPT | OPERATORS,
        spanned=frozenset() if whole else STACKS,
        processes=processes or {},
    )
    raw_bytes, odd = 0, Oddities()
    is_maybe_ascend = processes is None and "deviceProperties" not in head  # that is torch.profiler's own
    for start, piece in pieces:
        raw_bytes = start + len(piece)
        if is_maybe_ascend and piece.rfind(MARK) >= 0:
            is_maybe_ascend = False
            if found := read_processes(path):
                return load_trace(path, operators, found)
        try:
            _apply_piece(columns, piece, head)
        except UNDECODABLE:
            _apply_piece(columns, repair_piece(piece, odd, start), head)
    if not whole and not any(name in columns.categories for name in GPU_CATEGORIES):
        return load_trace(path, processes=processes)  # a GPU was present but not used
    if not columns.count:
        other = columns.uncategorized + odd.events
        why = f": {other} events without a category or a time are not torch's" if other else ""
        raise TraceError(f"lacks events with a duration{why} [SL-trace-no-duration]")
    return _build_trace(columns, head, raw_bytes, odd)


def _apply_piece(columns: Columns, piece: bytes, head: dict[str, Any]) -> None:
    """Add the whole piece or, if it cannot be decoded, no part of it."""
    columns.apply(decode_piece(piece, Event, strict=False), piece)
    if not piece.startswith(b"["):
        for key, value in msgspec.structs.asdict(msgspec.json.decode(piece, type=Behind)).items():
            head.setdefault(key, value)


def _build_trace(columns: Columns, head: dict[str, Any], raw_bytes: int, odd: Oddities) -> Trace:
    ts, end = columns.take("ts"), columns.take("dur")
    first = columns.first_ns
    ts -= first
    end += ts
    return Trace(
        head=head,
        distributed=_object(head.get("distributedInfo")),
        origin_ns=first + read_base_ns(head.get("baseTimeNanoseconds")),
        last_ns=columns.last_ns - first,
        ts=ts,
        end=end,
        **{key: columns.take(key) for key in ("name", "cat", "thread", "device", "stream", "bytes")},
        **{key: columns.take(key, np.int32) for key in ("linked", "gpu")},
        linked_correlation=columns.take("correlation"),
        names=list(columns.names),
        categories=list(columns.categories),
        communication=Communication(
            columns.take("talks"),
            columns.take("collective", np.int32),
            columns.take("group", np.int32),
            columns.take("talk_bytes"),
            list(columns.collectives),
            list(columns.groups),
        ),
        memory=MemoryEvents(
            columns.take("memory_ts") - first,
            *(columns.take(key) for key in ("allocated", "reserved", "device_type", "device_id")),
        ),
        left_out=columns.left_out,
        odd=odd,
        of_ascend=bool(columns.processes),
        has_stacks=columns.has_spanned or not STACKS.isdisjoint(columns.categories),
        raw_bytes=raw_bytes,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


StepsFrom = Literal["labels", "profiler", "recording"]

PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")
PHASES = {
    phase: re.compile(f"^{label.replace('## ', '## ?').replace(' ##', ' ?##')}$", re.IGNORECASE)
    for phase, label in LABELS.items()
}
OTHER_LABELS = {  # the first label in the trace counts, if it has no label of PHASES for that phase
    "data": (
        re.compile(r"^enumerate\((DataLoader|DataPipe)\)#"),  # torch
        re.compile(r"^\[pl\]\[profile\].*(_next|get_train_batch)$"),  # Lightning's PyTorchProfiler
        re.compile(r"(^|\.)next\(data_iter\)$"),  # TorchTNT
    ),
    # torch's label; Lightning's own optimizer_step includes the forward pass
    "optimizer": (re.compile(r"^Optimizer\.(step|zero_grad)#"),),
}
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
IN_CLOSURE = re.compile(
    r"^Optimizer\.zero_grad#|^\[pl\]\[profile\]\[Strategy\]\w+\.(training_step|backward)$"
)


@dataclass(frozen=True)
class Window:
    """Hold one training step on the host, ns since the first event. `is_recording`: the whole recording, not a step."""

    step: int
    start_ns: int
    end_ns: int
    is_recording: bool = False


def find_steps(trace: Trace) -> tuple[StepsFrom, list[Window]]:
    """Return the steps in time order, and their source: `## Training Step i ##`, else `ProfilerStep#i`.

    Without either, the whole recording counts as one step, including events in flight at its start.
    """
    labels = np.flatnonzero(trace.in_category(LABEL_CATEGORIES))
    patterns: tuple[tuple[StepsFrom, re.Pattern[str]], ...] = (("labels", STEP), ("profiler", PROFILER_STEP))
    for origin, pattern in patterns:
        found = _matching(trace, labels, pattern)
        if len(found):
            found = found[np.argsort(trace.ts[found], kind="stable")]
            numbers = [int(pattern.match(trace.names[trace.name[i]])[1]) for i in found]  # type: ignore[index]
            return origin, [
                Window(number, int(trace.ts[i]), int(trace.end[i]))
                for number, i in zip(numbers, found, strict=True)
            ]
    return "recording", [Window(1, BEFORE, trace.last_ns, is_recording=True)]


def find_phases(trace: Trace) -> list[str]:
    """Return the phases that have labels."""
    return [phase for phase in PHASES if len(_find_phase(trace, phase))]


def _find_phase(trace: Trace, phase: str) -> Times:
    """Return the events that label the phase: the trainer's, else torch's, else another training loop's."""
    labels = np.flatnonzero(trace.in_category(LABEL_CATEGORIES))
    for pattern in (PHASES[phase], *OTHER_LABELS.get(phase, ())):
        if len(found := _matching(trace, labels, pattern)):
            is_closed = phase == "optimizer" and _run_closures(trace, labels)
            return labels[:0] if is_closed and pattern is not PHASES[phase] else found
    return labels[:0]


def _run_closures(trace: Trace, labels: Times) -> bool:
    """Return whether `Optimizer.step` also runs forward and backward pass, as Lightning calls it."""
    steps, inner = (_matching(trace, labels, pattern) for pattern in (OPTIMIZER_STEP, IN_CLOSURE))
    return bool(is_within(trace.ts[inner], build_union(trace.ts[steps], trace.end[steps])).any())


def _matching(trace: Trace, events: Times, pattern: re.Pattern[str]) -> Times:
    """Return the matching events; each of their names is matched once."""
    codes = [code for code in find_distinct(trace.name[events]) if pattern.search(trace.names[code])]
    return events[np.isin(trace.name[events], codes)]


def build_phase_labels(trace: Trace, windows: list[Window]) -> dict[str, list[Intervals]]:
    """Return the labels' times per phase and step, several with gradient accumulation.

    A phase without a label is absent. A label belongs to the step in which it starts; a label between two steps belongs
    to the next.
    """
    ends = [window.end_ns for window in windows]
    labels = {}
    for phase in find_phases(trace):
        found = _find_phase(trace, phase)
        owner = np.searchsorted(ends, trace.ts[found], side="right")
        steps = [found[owner == i] for i in range(len(windows))]
        labels[phase] = [(trace.ts[mine], trace.end[mine]) for mine in steps]
    return labels
