"""The rank in names that others chose: of files, and of the folders that they lie in."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def strip_ending(name: str) -> str:
    """`runs` of runs.json, runs.json.gz and runs.pt.trace.json."""
    return ENDING.sub("", name)


def split_folders(folders: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(folders of the experiment, those of nodes and ranks inside of it)."""
    at = len(folders)
    while at and (RANK_FOLDER.fullmatch(folders[at - 1]) or NODE_FOLDER.fullmatch(folders[at - 1])):
        at -= 1
    return tuple(folders[:at]), tuple(folders[at:])


def find_rank(name: str) -> int | None:
    """In the name of a file: after rank, worker, process or proc, or all of it."""
    stem = strip_ending(name)
    if found := ONLY_NUMBER.fullmatch(stem):
        return int(found[1])
    return next((int(m[1]) for pattern in RANKS_IN_NAME if (m := pattern.search(stem))), None)


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
