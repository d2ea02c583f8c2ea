"""One rank's trace as numpy columns, in whole nanoseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stratlab.traces.ascend import MARK, Processes, read_processes
from stratlab.traces.chunks import LIMITS, Limits, TraceError, read_head, split_placed
from stratlab.traces.columns import Columns
from stratlab.traces.events import GPU_CATEGORIES, decode_events, decode_rest
from stratlab.traces.intervals import Times
from stratlab.traces.odd_values import Oddities, decode_head, mend_piece, read_base_ns

LABEL_CATEGORIES = (
    "user_annotation",
    "Operator",
)  # writers of 2021 had one category for labels and operators
NOT_KEPT = frozenset({"Trace"})  # the profiler's own span
OPERATORS = frozenset({"cpu_op"})
BEFORE, UNTOLD = -2, -1  # instead of a time: before the recording, not in the trace
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MemoryEvents:
    """The profiler's `[memory]` instants: totals after each allocation. Bytes; ns like the trace's."""

    ts: Times
    allocated: Times
    reserved: Times
    device_type: Times  # 0 = host
    device_id: Times


@dataclass(frozen=True)
class Communication:
    """What GPU events and the records around their launches (RECORD) say of a collective, one entry per event that says
    anything. `index` counts the trace's events."""

    index: Times
    collective: NDArray[np.int32]  # into `collectives`
    group: NDArray[np.int32]  # into `groups`
    bytes: Times  # the larger of what goes in and what comes out; -1 = not told
    collectives: list[str]
    groups: list[tuple[str, str, str]]  # process group: name, description, ranks as text


@dataclass(frozen=True)
class Trace:
    """Events with a duration, as columns; times in ns since the first event; name and cat index the tables."""

    head: dict[str, Any]  # what stands before the events
    distributed: dict[str, Any]  # Kineto's distributedInfo: rank, world_size, backend, pg_config
    origin_ns: int  # of the first event, since 1970 where the trace tells its base
    ts: Times
    end: Times
    name: NDArray[np.int32]
    cat: NDArray[np.int32]
    thread: NDArray[np.int32]
    names: list[str]
    categories: list[str]
    linked: NDArray[np.int32]  # GPU events and what may have launched them, in ascending order
    linked_correlation: Times  # what joins a GPU event to its launch, one per `linked`; -1 = none
    gpu: NDArray[np.int32]  # the events that ran on a GPU
    device: Times  # one per `gpu`; -1 = none
    stream: Times  # the same
    bytes: Times  # copied by it, one per `gpu`; -1 = not told
    communication: Communication
    memory: MemoryEvents
    left_out: int  # events without a usable time (pytorch#188481 writes 0.000)
    odd: Oddities
    of_ascend: bool
    raw_bytes: int  # unpacked

    @property
    def correlation(self) -> Times:
        """One per event; -1 = none."""
        whole = np.full(len(self.ts), -1, np.int64)
        whole[self.linked] = self.linked_correlation
        return whole

    def in_category(self, categories: tuple[str, ...]) -> Mask:
        """Which events are of these categories."""
        return np.isin(self.cat, [i for i, name in enumerate(self.categories) if name in categories])

    def matches(self, pattern: re.Pattern[str]) -> Mask:
        """Which events' names match; each name is looked at once."""
        return np.array([bool(pattern.search(name)) for name in self.names], bool)[self.name]


def read_rank(path: Path, limits: Limits = LIMITS) -> int | None:
    """The rank in the file's distributedInfo; None if it names none there.

    Raises:
        TraceError: what stands before the events is not readable.
    """
    rank = _object(decode_head(read_head(path, limits)).get("distributedInfo")).get("rank")
    return rank if isinstance(rank, int) else None


def load_trace(
    path: Path, limits: Limits = LIMITS, operators: bool = True, processes: Processes | None = None
) -> Trace:
    """Decodes one file completely.

    Args:
        processes: of an Ascend trace, their names; None = not looked for yet.
        operators: False = the host's operators are left out where the trace holds GPU events; they are most of it.

    Raises:
        TraceError: not JSON, cut off, empty, above the limits, or without a single event of known duration.
    """
    pieces = split_placed(path, limits)
    head = decode_head(next(pieces)[1])
    columns = Columns(
        without=NOT_KEPT if operators or not head.get("deviceProperties") else NOT_KEPT | OPERATORS,
        processes=processes or {},
    )
    raw_bytes, odd = 0, Oddities()
    for start, piece in pieces:
        raw_bytes += len(piece)
        if processes is None and MARK in piece:
            processes = read_processes(path, limits)
            if processes:
                return load_trace(path, limits, operators, processes)
        try:
            _apply_piece(columns, piece, head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _apply_piece(columns, mend_piece(piece, odd, start), head)
    if columns.without > NOT_KEPT and not any(name in columns.categories for name in GPU_CATEGORIES):
        return load_trace(path, limits, processes=processes)  # it had a GPU in sight and did not use it
    if not columns.count:
        other = columns.uncategorized + odd.events
        raise TraceError(
            "holds no event with a duration"
            + (f": {other} events without a category or a time are not torch's" if other else "")
            + " [SL-trace-no-duration]"
        )
    return _build_trace(columns, head, raw_bytes, odd)


def _apply_piece(columns: Columns, piece: bytes, head: dict[str, Any]) -> None:
    """All of it or, where it cannot be decoded, nothing."""
    if piece.startswith(b"["):
        columns.apply(decode_events(piece), piece)
    else:
        rest = decode_rest(piece)
        columns.apply(rest.traceEvents, piece)
        head.setdefault("distributedInfo", rest.distributedInfo)
        head.setdefault("baseTimeNanoseconds", rest.baseTimeNanoseconds)


def _build_trace(columns: Columns, head: dict[str, Any], raw_bytes: int, odd: Oddities) -> Trace:
    ts, end = columns.take("ts"), columns.take("dur")
    first = int(ts.min())
    ts -= first
    end += ts
    return Trace(
        head=head,
        distributed=_object(head.get("distributedInfo")),
        origin_ns=first + read_base_ns(head.get("baseTimeNanoseconds")),
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
        raw_bytes=raw_bytes,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


__all__ = [
    "BEFORE",
    "GPU_CATEGORIES",
    "LABEL_CATEGORIES",
    "UNTOLD",
    "Communication",
    "MemoryEvents",
    "Trace",
    "load_trace",
    "read_rank",
]
