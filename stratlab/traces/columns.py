"""Turn Kineto's JSON, piece by piece, into numpy columns; also the JSON of Ascend's profiler for torch.

msgspec decodes each event into a typed struct. Each column reads only the events that it needs: links to launches only
GPU events and launches, facts of a collective only communication kernels. No object per event stays in memory. These
two points are the whole difference to a parser that builds dictionaries or a data frame (benchmarks/traces.py).

Ascend's trace_view.json is a list of events. torch's events have a category, and times as text. Events of the device
and of its runtime (CANN) have no category: the name of their process identifies them, and a `connection_id` joins a
task to its launch. `categorize` adds the fields that torch.profiler writes. The names of processes may follow the
events, so `read_processes` reads them first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stratlab.traces.chunks import split_events
from stratlab.traces.kineto_events import (
    COLLECTIVE_OPERATORS,
    ELEMENT_BYTES,
    GPU_CATEGORIES,
    NO_ARGS,
    RECORD,
    Args,
    Event,
    ExactTimes,
    Number,
    decode_piece,
)
from stratlab.traces.repair import decode_odd_piece
from stratlab_spec.trace_events import UNLINKED_CATEGORIES

HARDWARE = "Ascend Hardware"
MARK = b'"Ascend Hardware"'
RUNTIME = "CANN"
COMMUNICATION = ("Communication", "HCCL")  # since CANN 7, and before
COLLECTIVE = "hcom_"  # the other events of that process are parts of it
WORK, COPY = re.compile(r"AI_?[CV]|DSA"), re.compile(r"MEMCPY|SDMA|PCIE")  # other tasks wait, or keep order
NOT_READ = "Trace"  # the category that Columns leaves out

Processes = dict[Number, str]


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _Name(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: Number = None
    args: _Named | None = None


def read_processes(path: Path) -> Processes:
    """Return the name of each process; empty if no process is an Ascend device.

    Raises:
        TraceError: as `load_trace`.
    """
    pieces = split_events(path)
    next(pieces)
    found: Processes = {}
    for piece in pieces:
        if b'"process_name"' in piece:
            named = (
                e
                for e in decode_odd_piece(piece, _Name)
                if e.ph == "M" and e.name == "process_name" and e.args
            )
            found |= {e.pid: e.args.name for e in named if e.args}
    return found if HARDWARE in found.values() else {}


def categorize(events: Iterable[Event], processes: Processes) -> None:
    """Set each event's category, and its correlation and stream under the names that torch.profiler uses."""
    for event in events:
        if event.cat:
            # Ascend has one category for labels and operators, as torch had in 2021
            event.cat = "Operator" if event.cat == "cpu_op" else event.cat
            continue
        process, args = processes.get(event.pid), event.args or Args()
        if process == HARDWARE:
            event.cat = _find_category(args.task)
            args.stream = event.tid if args.stream_id is None else args.stream_id
        elif process in COMMUNICATION and event.name.startswith(COLLECTIVE):
            event.cat = "kernel"
        else:
            event.cat = "cann_runtime" if process == RUNTIME else NOT_READ
        args.correlation = args.connection
        event.args = args


def _find_category(task: Number) -> str:
    if task is None or WORK.search(str(task)):
        return "kernel"
    return "gpu_memcpy" if COPY.search(str(task)) else NOT_READ


Column = NDArray[Any]

EXACT_BELOW_US = 2.0**43  # below this, a float64 of microseconds distinguishes every nanosecond
LATEST_US, LONGEST_US = 4e15, 4e15  # larger values do not fit 63 bits of nanoseconds


class Codes(dict[Any, int]):
    """Number keys from 0 in the order of appearance."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


@dataclass
class Growing:
    """Hold a column that grows in place, because joining pieces at the end would need twice the memory."""

    values: Column
    count: int = 0

    def apply(self, piece: Column) -> None:
        needed = self.count + len(piece)
        if needed > len(self.values):
            self.values.resize(max(needed, len(self.values) * 5 // 4), refcheck=False)
        self.values[self.count : needed] = piece
        self.count = needed

    def take(self) -> Column:
        self.values.resize(self.count, refcheck=False)
        return self.values


class _Chosen(dict[str, bool]):
    """Remember which names start with one of `starts`."""

    def __init__(self, *starts: str) -> None:
        self.starts = starts

    def __missing__(self, name: str) -> bool:
        self[name] = chosen = name.startswith(self.starts)
        return chosen


@dataclass
class Columns:
    """Collect columns piece by piece. All times in ns on the trace's own clock."""

    names: Codes = field(default_factory=Codes)
    categories: Codes = field(default_factory=Codes)
    threads: Codes = field(default_factory=Codes)
    collectives: Codes = field(default_factory=Codes)
    groups: Codes = field(default_factory=Codes)  # (name, description, ranks)
    without: frozenset[str] = frozenset({"Trace"})  # categories that are left out
    spanned: frozenset[str] = frozenset()  # others, of which only `first_ns` and `last_ns` know
    processes: Processes = field(default_factory=dict)  # of an Ascend trace
    columns: dict[str, Growing] = field(default_factory=dict)
    count: int = 0
    left_out: int = 0
    uncategorized: int = 0  # events with a duration but no category; torch sets a category for each event
    has_spanned: bool = False
    first_ns: int = 1 << 62
    last_ns: int = 0
    _always: _Chosen = field(default_factory=lambda: _Chosen(RECORD, *COLLECTIVE_OPERATORS))

    def apply(self, events: list[Event], text: bytes) -> None:
        """Add the events of one piece; `text` is their JSON."""
        if text.rfind(b'"[memory]"') >= 0:  # from behind, Python searches three times as fast
            self._apply_memory([e for e in events if e.name == "[memory]" and e.ph == "i" and e.args])
        if self.processes:
            categorize(events, self.processes)
        left, always, spanned = self.without, self._always, self.spanned
        wanted = [e for e in events if e.ph == "X" and (e.cat not in left or always[e.name])]
        if spanned and (inner := [e for e in wanted if e.cat in spanned]):
            self.has_spanned = True
            wanted = [e for e in wanted if e.cat not in spanned]
            self._keep(inner, events, text)
        kept, times = self._keep(wanted, events, text)
        if not kept:
            return
        code = self.categories
        category = np.array([code[e.cat] for e in kept], np.int32)
        code = self.names
        name = np.array([code[e.name] for e in kept], np.int32)
        code = self.threads
        thread = np.array([code[e.pid, e.tid] for e in kept], np.int32)
        whole = {"ts": times[0], "dur": times[1], "name": name, "cat": category, "thread": thread}
        for key, column in whole.items():
            self._add(key, column)
        linked = np.flatnonzero(self._which(category, UNLINKED_CATEGORIES, without=True))
        args = [kept[i].args or NO_ARGS for i in linked.tolist()]
        self._add("linked", (linked + self.count).astype(np.int32))
        self._add("correlation", read_integers([a.correlation for a in args]))
        on_gpu = self._which(category, GPU_CATEGORIES)
        gpu = np.flatnonzero(on_gpu)
        args = [kept[i].args or NO_ARGS for i in gpu.tolist()]
        self._add("gpu", (gpu + self.count).astype(np.int32))
        self._add("device", read_integers([a.device for a in args]))
        self._add("stream", read_integers([a.stream for a in args]))
        self._add("bytes", read_integers([a.bytes for a in args]))
        asked = np.flatnonzero(on_gpu | (name == self.names.get(RECORD, -1))).tolist()
        talks = [(i, a) for i in asked if (a := kept[i].args or NO_ARGS).collective not in (None, "")]
        if talks:
            self._apply_communication(np.array([i for i, _ in talks]) + self.count, [a for _, a in talks])
        self.count += len(kept)

    def _keep(
        self, wanted: list[Event], events: list[Event], text: bytes
    ) -> tuple[list[Event], tuple[Column, Column]]:
        """Return the `wanted` events with a usable time, and their starts and durations in ns, read from `text`."""
        timed = [e for e in wanted if e.dur is not None and e.cat]
        if len(timed) < len(wanted):
            uncategorized = sum(1 for e in wanted if e.dur is not None and not e.cat)
            self.uncategorized += uncategorized
            self.left_out += sum(1 for e in wanted if e.dur is None and e.cat)
        kept, times = self._read_times(timed, events, text)
        if kept:
            self.first_ns = min(self.first_ns, int(times[0].min()))
            self.last_ns = max(self.last_ns, int((times[0] + times[1]).max()))
        return kept, times

    def _read_times(
        self, timed: list[Event], events: list[Event], text: bytes
    ) -> tuple[list[Event], tuple[Column, Column]]:
        try:
            ts, dur = np.array([e.ts for e in timed]), np.array([e.dur for e in timed])
            if not (are_whole := ts.dtype == dur.dtype == np.int64):
                ts, dur = ts.astype(np.float64), dur.astype(np.float64)
        except OverflowError:  # an integer too large for a float64
            fit = [e for e in timed if e.ts < LATEST_US and e.dur < LONGEST_US]  # type: ignore[operator]
            return self._read_times(fit, events, text)
        usable = (ts > 0) & (ts < LATEST_US) & (dur >= 0) & (dur < LONGEST_US)
        if not usable.all():
            self.left_out += int((~usable).sum())
            timed, ts, dur = list(compress(timed, usable)), ts[usable], dur[usable]
        if are_whole:
            return timed, (ts * 1000, dur * 1000)
        if len(ts) and ts.max() >= EXACT_BELOW_US:
            return timed, _exact(timed, events, text)
        return timed, (to_ns(ts), to_ns(dur))

    def take(self, key: str, dtype: type = np.int64) -> Column:
        """Return a whole column and drop it here."""
        column = self.columns.pop(key, None)
        return np.empty(0, dtype) if column is None else column.take()

    def _which(
        self, category: Column, wanted: tuple[str, ...], *, without: bool = False
    ) -> NDArray[np.bool_]:
        return np.array([(name in wanted) != without for name in self.categories], bool)[category]

    def _apply_communication(self, index: Column, args: list[Args]) -> None:
        elements = np.maximum(
            read_integers([a.in_elements for a in args]), read_integers([a.out_elements for a in args])
        )
        sizes = np.array([ELEMENT_BYTES.get(str(a.dtype), 0) for a in args], np.int64)
        self._add("talks", index)
        self._add("talk_bytes", np.where((elements >= 0) & (sizes > 0), elements * sizes, -1))
        self._add("collective", np.array([self.collectives[str(a.collective)] for a in args], np.int32))
        groups = [(str(a.group), str(a.description or ""), str(a.ranks or "")) for a in args]
        self._add("group", np.array([self.groups[key] for key in groups], np.int32))

    def _apply_memory(self, events: list[Event]) -> None:
        if not events:
            return
        args = [e.args or NO_ARGS for e in events]
        self._add("memory_ts", to_ns(np.array([min(max(0, e.ts), LATEST_US) for e in events], np.float64)))
        for key in ("allocated", "reserved", "device_type", "device_id"):
            self._add(key, read_integers([getattr(a, key) for a in args]))

    def _add(self, key: str, piece: Column) -> None:
        if key not in self.columns:
            self.columns[key] = Growing(np.empty(0, piece.dtype))
        self.columns[key].apply(piece)


def to_ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert times in us with three decimals to whole nanoseconds; exact below EXACT_BELOW_US."""
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _exact(kept: list[Event], events: list[Event], text: bytes) -> tuple[Column, Column]:
    """Convert times since 1970, of which a float64 distinguishes only steps of 0.25 us."""
    chosen = set(map(id, kept))
    decoded = zip(decode_piece(text, ExactTimes), events, strict=True)
    exact = [times for times, e in decoded if id(e) in chosen]
    return (
        np.array([int((e.ts * 1000).to_integral_value()) for e in exact], np.int64),
        np.array([int((e.dur * 1000).to_integral_value()) for e in exact if e.dur is not None], np.int64),
    )


def read_integers(values: list[Any]) -> NDArray[np.int64]:
    """Return the values as integers, and -1 for other values."""
    try:
        return np.array([-1 if value is None else value for value in values], np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], np.int64)


def _integer(value: Number) -> int:
    try:
        number = -1 if value is None else int(value)
    except (ValueError, OverflowError):
        return -1
    return number if -(2**63) <= number < 2**63 else -1
