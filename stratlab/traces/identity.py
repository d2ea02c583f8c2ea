"""What a trace file says of itself without being decoded: its rank, and of how many."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stratlab.traces.chunks import (
    LIMITS,
    Limits,
    TraceError,
    read_blocks,
    read_head,
    say_unreadable,
    split_events,
)
from stratlab.traces.odd_values import LATEST_NS, NO_CLOCK, decode_head, say_no_head

INFO_KEY = b'"distributedInfo"'


class _Head(msgspec.Struct):
    distributedInfo: dict[str, Any] | None = None
    baseTimeNanoseconds: Any = None
    mergedTrace: Any = None  # written by merge.py


@dataclass(frozen=True)
class Identity:
    """`rank`, `world_size`, `backend`: of distributedInfo, None where it names none. `problem`: why the file is not the
    trace of one rank."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    problem: str | None = None


def read_identity(path: Path, limits: Limits = LIMITS, behind: bool = True) -> Identity:
    """Reads what stands before the events. Never raises for what the file holds.

    Args:
        behind: where no rank is named there, also what stands after them: some writers put it there. That unpacks the
            whole file, and reads it where there is such a thing.
    """
    try:
        head = msgspec.convert(decode_head(read_head(path, limits)), _Head)
    except TraceError as failure:
        return Identity(problem=str(failure))
    except msgspec.ValidationError as failure:
        return Identity(problem=say_no_head(failure))
    except OSError as failure:
        return Identity(problem=say_unreadable(failure.strerror))
    info, base = head.distributedInfo or {}, head.baseTimeNanoseconds
    if head.mergedTrace is not None:
        return Identity(problem="a merged trace, not that of one rank [SL-trace-merged]")
    if info.get("rank") is not None and type(info["rank"]) is not int:
        return Identity(problem="its distributedInfo names no whole number as rank [SL-rank-no-number]")
    if isinstance(base, int) and abs(base) >= LATEST_NS:
        return Identity(problem=NO_CLOCK)
    if info.get("rank") is None and behind:
        return _read_behind(path, info, limits)
    return _build(info)


def _read_behind(path: Path, info: dict[str, Any], limits: Limits) -> Identity:
    try:
        if _tells_behind(path, limits):
            last = deque(split_events(path, limits), maxlen=1).pop()
            info = {**info, **(msgspec.json.decode(last, type=_Head).distributedInfo or {})}
    except TraceError as failure:
        return Identity(problem=str(failure))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError):
        pass  # what is wrong with it is found when it is read
    return _build(info)


def _tells_behind(path: Path, limits: Limits) -> bool:
    """Whether the key is there, as far as it costs little to know: a file that is not packed is read at its end."""
    with open(path, "rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(max(0, path.stat().st_size - limits.piece_bytes))
            return INFO_KEY in file.read()
    last = b""
    for block in read_blocks(path, limits):
        if INFO_KEY in last + block:
            return True
        last = block[-len(INFO_KEY) :]
    return False


def _build(info: dict[str, Any]) -> Identity:
    rank, size, backend = info.get("rank"), info.get("world_size"), info.get("backend")
    return Identity(
        rank if type(rank) is int else None,
        size if type(size) is int else None,
        backend if isinstance(backend, str) else None,
    )
