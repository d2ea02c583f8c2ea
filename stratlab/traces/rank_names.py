"""The rank in names that others chose: of files, and of the folders that they lie in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

RANKS_IN_NAME = (  # the first that a name holds
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
    """Of a trace whose name tells another rank than it does itself."""
    return f"named as rank {named}, but of rank {rank} [SL-rank-other-name]"


def strip_ending(name: str) -> str:
    """`runs` of runs.json, runs.json.gz and runs.pt.trace.json."""
    return ENDING.sub("", name)


def split_folders(folders: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(folders of the experiment, those of nodes and ranks inside of it)."""
    at = len(folders)
    while at and (RANK_FOLDER.fullmatch(folders[at - 1]) or NODE_FOLDER.fullmatch(folders[at - 1])):
        at -= 1
    return tuple(folders[:at]), tuple(folders[at:])


@dataclass(frozen=True)
class Place:
    """Where a trace belongs.

    Attributes:
        above: the folders of its experiment; below: those of ranks and nodes inside of it.
        stem: what the traces of one experiment share of their names.
    """

    above: tuple[str, ...]
    below: tuple[str, ...]
    stem: str


def find_place(parts: Sequence[str], asked: re.Match[str] | None = None) -> Place:
    """Of the folders and the name of a file.

    Args:
        asked: what --rank-pattern has found in them, joined by slashes: it divides nothing.
    """
    *folders, name = _take_out(parts, asked) if asked and asked[1] else parts
    above, below = split_folders(folders)
    return Place(above, below, strip_rank(name, below))


def _take_out(parts: Sequence[str], asked: re.Match[str]) -> list[str]:
    """Without the rank; a folder that the pattern matches as a whole goes with it."""
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


def find_rank(name: str) -> int | None:
    """In the name of a file: after rank, worker, process or proc, or all of it."""
    stem = strip_ending(name)
    if found := ONLY_NUMBER.fullmatch(stem):
        return int(found[1])
    return next((int(m[1]) for pattern in RANKS_IN_NAME if (m := pattern.search(stem))), None)


def find_named_rank(parts: Sequence[str]) -> tuple[int | None, str]:
    """What the name of a file tells, or else its folders; and which of them."""
    if (rank := find_rank(parts[-1])) is not None:
        return rank, "file name"
    return find_folder_rank(split_folders(parts[:-1])[1]), "folder name"


def find_folder_rank(below: Sequence[str]) -> int | None:
    """Of the innermost folder that is named after a rank."""
    return next((int(m[1]) for part in reversed(below) if (m := RANK_FOLDER.fullmatch(part))), None)


def strip_rank(name: str, below: Sequence[str]) -> str:
    """What the traces of one experiment share: the name of a file, with the folders of nodes above it, without its
    rank, when it was recorded, and its ending."""
    stem = strip_ending(RECORDED_AT.sub("", name))
    if ONLY_NUMBER.fullmatch(stem):
        stem = ""
    for pattern in RANKS_IN_NAME:
        if pattern.search(stem):
            stem = pattern.sub("", stem, count=1)
            break
    nodes = [part for part in below if NODE_FOLDER.fullmatch(part)]
    return "-".join(filter(None, [*nodes, stem.strip("_.- ")])) or "traces"
