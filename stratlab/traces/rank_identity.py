"""Identify the rank of a trace and the number of ranks.

Sources are the file, without decoding its events, and the names of the file and its folders.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stratlab.traces.chunks import LIMITS, TraceError, read_blocks, read_head, say_unreadable, split_events
from stratlab.traces.repair import LATEST_NS, NO_CLOCK, decode_head, say_no_head

INFO_KEY = b'"distributedInfo"'


class _Head(msgspec.Struct):
    distributedInfo: dict[str, Any] | None = None
    baseTimeNanoseconds: Any = None
    mergedTrace: Any = None  # written by merge.py


@dataclass(frozen=True)
class Identity:
    """Hold the rank of a file.

    `rank`, `world_size`, `backend` come from distributedInfo, None if it lacks one. `problem`: why the file is not the
    trace of one rank.
    """

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    problem: str | None = None


def read_identity(path: Path, behind: bool = True) -> Identity:
    """Read the part before the events. Never raises for the content of the file.

    Args:
        behind: if that part names no rank, also read the part after the events, where some writers store it. This
        unpacks
            the whole file, and decodes it if the key exists.
    """
    try:
        head = msgspec.convert(decode_head(read_head(path)), _Head)
    except TraceError as failure:
        return Identity(problem=str(failure))
    except msgspec.ValidationError as failure:
        return Identity(problem=say_no_head(failure))
    except OSError as failure:
        return Identity(problem=say_unreadable(failure.strerror))
    info, base = head.distributedInfo or {}, head.baseTimeNanoseconds
    if head.mergedTrace is not None:
        return Identity(problem="a merged trace of several ranks [SL-trace-merged]")
    if info.get("rank") is not None and type(info["rank"]) is not int:
        return Identity(problem="the rank in its distributedInfo is not a whole number [SL-rank-no-number]")
    if isinstance(base, int) and abs(base) >= LATEST_NS:
        return Identity(problem=NO_CLOCK)
    if info.get("rank") is None and behind:
        return _read_behind(path, info)
    return _build(info)


def _read_behind(path: Path, info: dict[str, Any]) -> Identity:
    try:
        if _tells_behind(path):
            last = deque(split_events(path), maxlen=1).pop()
            info = {**info, **(msgspec.json.decode(last, type=_Head).distributedInfo or {})}
    except TraceError as failure:
        return Identity(problem=str(failure))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError):
        pass  # reported when the file is read
    return _build(info)


def _tells_behind(path: Path) -> bool:
    """Return whether the key exists, at little expense: of an unpacked file only the end is read."""
    with open(path, "rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(max(0, path.stat().st_size - LIMITS.piece_bytes))
            return INFO_KEY in file.read()
    last = b""
    for block in read_blocks(path):
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


RANKS_IN_NAME = (  # the first pattern that a name matches
    re.compile(r"rank[_.-]?(\d{1,6})(?!\d)", re.I),
    re.compile(r"(?<![a-z])(?:worker|process|proc)[_.-]?(\d{1,6})(?!\d)", re.I),
)
ONLY_NUMBER = re.compile(r"(\d{1,6})")
RANK_FOLDER = re.compile(r"(?:rank|worker|process|proc)[_.-]?(\d{1,6})", re.I)
NODE_FOLDER = re.compile(r"(?:node|host)[_.-]?\d{1,6}", re.I)
ENDING = re.compile(r"(\.pt)?(\.trace)?(\.json)?(\.gz)?$", re.I)
# torch's own names: <host>_<pid>.<time>.pt.trace.json
RECORDED_AT = re.compile(r"(_\d+)?\.\d{10,}(?=\.pt\.trace\.json)|\d{8,}")


def say_other_name(named: int | None, rank: int) -> str:
    """Describe a trace whose name has another rank than its content."""
    return f"its name has rank {named}, but its content rank {rank} [SL-rank-other-name]"


def strip_ending(name: str) -> str:
    """Return `runs` of runs.json, runs.json.gz and runs.pt.trace.json."""
    return ENDING.sub("", name)


def split_folders(folders: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (folders of the experiment, folders of nodes and ranks inside of it)."""
    at = len(folders)
    while at and (RANK_FOLDER.fullmatch(folders[at - 1]) or NODE_FOLDER.fullmatch(folders[at - 1])):
        at -= 1
    return tuple(folders[:at]), tuple(folders[at:])


@dataclass(frozen=True)
class Location:
    """Locate a trace.

    Attributes:
        above: the folders of its experiment; below: the folders of ranks and nodes inside of it.
        stem: the common part of the names of one experiment's traces.
    """

    above: tuple[str, ...]
    below: tuple[str, ...]
    stem: str


def locate_trace(parts: Sequence[str], asked: re.Match[str] | None = None) -> Location:
    """Locate a trace by its folders and file name.

    Args:
        asked: match of --rank-pattern in the parts, joined by slashes; it does not divide experiments.
    """
    *folders, name = _take_out(parts, asked) if asked and asked[1] else parts
    above, below = split_folders(folders)
    return Location(above, below, strip_rank(name, below))


def _take_out(parts: Sequence[str], asked: re.Match[str]) -> list[str]:
    """Return the parts without the rank; drop a folder that the pattern matches completely."""
    kept, at = [], 0
    for number, part in enumerate(parts, 1):
        end = at + len(part)
        if at <= asked.start(1) and asked.end(1) <= end:
            is_folder, is_whole = number < len(parts), asked.start() <= at and end <= asked.end()
            part = part[: asked.start(1) - at] + part[asked.end(1) - at :]
            part = "" if is_folder and is_whole else part
        kept += [part] if part or number == len(parts) else []
        at = end + 1
    return kept


def find_named_rank(parts: Sequence[str]) -> tuple[int | None, str]:
    """Return the rank in a file's name, else in the innermost folder named after a rank, and its source.

    A file's name has the rank after rank, worker, process or proc, or is only a number.
    """
    stem = strip_ending(parts[-1])
    found = (ONLY_NUMBER.fullmatch(stem), *(pattern.search(stem) for pattern in RANKS_IN_NAME))
    for match in filter(None, found):
        return int(match[1]), "file name"
    folders = (RANK_FOLDER.fullmatch(part) for part in reversed(split_folders(parts[:-1])[1]))
    return next((int(match[1]) for match in folders if match), None), "folder name"


def strip_rank(name: str, below: Sequence[str]) -> str:
    """Return the common part of one experiment's names.

    This is the file name with the folders of nodes above it, without rank, time of recording and ending.
    """
    stem = strip_ending(RECORDED_AT.sub("", name))
    stem = ONLY_NUMBER.sub("", stem) if ONLY_NUMBER.fullmatch(stem) else stem
    if pattern := next((each for each in RANKS_IN_NAME if each.search(stem)), None):
        stem = pattern.sub("", stem, count=1)
    nodes = [part for part in below if NODE_FOLDER.fullmatch(part)]
    return "-".join(filter(None, [*nodes, stem.strip("_.- ")])) or "traces"
