"""One rank's trace as numpy columns: typed decode of Kineto JSON, piece by piece.

171 MB with 638,000 events take 2.8 s of CPU and 140 MiB of memory, most of it Python's loops over the events. With an
object or a data frame row per event it is ten times both (HTA: 33 s and 2.4 GiB for 525 MB).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stratlab.traces.chunks import LIMITS, Limits, TraceError, read_head, split_events

# A GPU event is known by its category, not by having a stream: Triton's CPU ops carry stream 0.
COPY_CATEGORIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
GPU_CATEGORIES = ("kernel", "Kernel", *COPY_CATEGORIES)
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime")
LABEL_CATEGORIES = ("user_annotation",)

Number = int | float | str | None
Mask = NDArray[np.bool_]


class _Args(msgspec.Struct, gc=False):
    correlation: Number = None
    allocated: Number = msgspec.field(default=None, name="Total Allocated")
    reserved: Number = msgspec.field(default=None, name="Total Reserved")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float = 0
    dur: int | float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Args | None = None


class _Rest(msgspec.Struct):
    traceEvents: list[_Event]
    distributedInfo: dict[str, Any] | None = None


_NO_ARGS = _Args()
_decode_events = msgspec.json.Decoder(list[_Event]).decode
_decode_rest = msgspec.json.Decoder(_Rest).decode


@dataclass(frozen=True)
class MemoryEvents:
    """The profiler's `[memory]` instants: totals after each allocation. Bytes; times in us like the
    trace's."""

    ts: NDArray[np.float64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    device_type: NDArray[np.int64]  # 0 = host
    device_id: NDArray[np.int64]


@dataclass(frozen=True)
class Trace:
    """Events with a duration, as columns; times in us since the first event; name and cat index the
    tables."""

    distributed: dict[str, Any]  # Kineto's distributedInfo: rank, world_size, backend
    ts: NDArray[np.float64]
    end: NDArray[np.float64]
    name: NDArray[np.int32]
    cat: NDArray[np.int32]
    correlation: NDArray[np.int64]  # joins a kernel to its launch; -1 = none
    thread: NDArray[np.int32]
    names: list[str]
    categories: list[str]
    memory: MemoryEvents
    left_out: int  # events without a usable time (pytorch#188481 writes 0.000)
    raw_bytes: int  # unpacked

    def in_category(self, categories: tuple[str, ...]) -> Mask:
        """Which events are of these categories."""
        return np.isin(self.cat, [i for i, name in enumerate(self.categories) if name in categories])

    def matches(self, pattern: re.Pattern[str]) -> Mask:
        """Which events' names match; each name is looked at once."""
        return np.array([bool(pattern.search(name)) for name in self.names], bool)[self.name]

    @property
    def gpu(self) -> NDArray[np.int64]:
        """Indices of the events that ran on a GPU."""
        return np.flatnonzero(self.in_category(GPU_CATEGORIES))


@dataclass
class _Columns:
    """Grows by pieces; the tables give every name and thread its number."""

    names: dict[str, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    pieces: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    left_out: int = 0

    def apply(self, events: list[_Event]) -> None:
        timed = [e for e in events if e.ph == "X" and e.dur is not None and e.cat and e.cat != "Trace"]
        kept = [e for e in timed if e.ts > 0 and e.dur >= 0]  # type: ignore[operator]
        points = [(e.ts, e.args) for e in events if e.name == "[memory]" and e.ph == "i" and e.args]
        self.left_out += len(timed) - len(kept)
        names, categories, threads = self.names, self.categories, self.threads
        self.pieces.append(
            {
                "ts": np.array([e.ts for e in kept], np.float64),
                "dur": np.array([e.dur for e in kept], np.float64),
                "name": np.array([names.setdefault(e.name, len(names)) for e in kept], np.int32),
                "cat": np.array([categories.setdefault(e.cat, len(categories)) for e in kept], np.int32),
                "correlation": np.array([_integer((e.args or _NO_ARGS).correlation) for e in kept], np.int64),
                "thread": np.array(
                    [threads.setdefault((e.pid, e.tid), len(threads)) for e in kept], np.int32
                ),
                "memory_ts": np.array([ts for ts, _ in points], np.float64),
                "allocated": np.array([_integer(a.allocated) for _, a in points], np.int64),
                "reserved": np.array([_integer(a.reserved) for _, a in points], np.int64),
                "device_type": np.array([_integer(a.device_type) for _, a in points], np.int64),
                "device_id": np.array([_integer(a.device_id) for _, a in points], np.int64),
            }
        )


def _integer(value: Number) -> int:
    try:
        number = -1 if value is None else int(value)
    except (ValueError, OverflowError):
        return -1
    return number if -(2**63) <= number < 2**63 else -1


def read_rank(path: Path, limits: Limits = LIMITS) -> int | None:
    """The rank in the file's distributedInfo; None if it names none there.

    Raises:
        TraceError: what stands before the events is not readable.
    """
    rank = (_decode_head(read_head(path, limits)).get("distributedInfo") or {}).get("rank")
    return rank if isinstance(rank, int) else None


def load_trace(path: Path, limits: Limits = LIMITS) -> Trace:
    """Decodes one file completely.

    Raises:
        TraceError: not JSON, cut off, empty, above the limits, or without a single event of known duration.
    """
    pieces = split_events(path, limits)
    about = _decode_head(next(pieces))
    columns = _Columns()
    raw_bytes = 0
    try:
        for piece in pieces:
            raw_bytes += len(piece)
            if piece.startswith(b"["):
                columns.apply(_decode_events(piece))
            else:
                rest = _decode_rest(piece)
                columns.apply(rest.traceEvents)
                about.setdefault("distributedInfo", rest.distributedInfo)
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise TraceError(f"truncated or not JSON ({failure})") from failure
    whole = {key: np.concatenate([p[key] for p in columns.pieces]) for key in columns.pieces[0]}
    if not len(whole["ts"]):
        raise TraceError("holds no event with a duration")
    # Shift before adding: float64 has steps of 0.25 us at 1.7e15 us.
    origin = whole["ts"].min()
    whole["ts"] -= origin
    return Trace(
        distributed=about.get("distributedInfo") or {},
        ts=whole["ts"],
        end=whole["ts"] + whole["dur"],
        names=list(columns.names),
        categories=list(columns.categories),
        left_out=columns.left_out,
        raw_bytes=raw_bytes,
        memory=MemoryEvents(
            whole["memory_ts"] - origin,
            *(whole[k] for k in ("allocated", "reserved", "device_type", "device_id")),
        ),
        **{key: whole[key] for key in ("name", "cat", "correlation", "thread")},
    )


def _decode_head(head: bytes) -> dict[str, Any]:
    try:
        about = msgspec.json.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise TraceError(f"not JSON before the events ({failure})") from failure
    return about if isinstance(about, dict) else {}
