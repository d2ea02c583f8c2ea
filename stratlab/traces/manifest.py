"""traces/manifest.json: which files the run wrote. It is believed only as far as the files agree (discover.py)."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import msgspec

from stratlab.traces.chunks import say_unreadable

MANIFEST = "manifest.json"
MANIFEST_BYTES = 16 << 20  # 160 bytes per rank
MISSING = "is missing [SL-trace-file-missing]"
NAME_NO_TEXT = "its name holds bytes that are no text [SL-name-no-text]"
KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder"}


class Entry(msgspec.Struct):
    """One file of the manifest."""

    rank: int
    file: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct):
    """traces/manifest.json, written by rank 0 when every trace is complete."""

    complete: bool
    files: list[Entry]
    first_step: int = 0
    steps: int = 0


def read_manifest(path: Path) -> tuple[Manifest | None, str | None]:
    """The manifest, None if it cannot be used, and what a reader of the report must know of it."""
    try:
        problem = find_problem(path, MANIFEST_BYTES)
        if problem is None:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
            if manifest.files:
                return (
                    manifest,
                    None
                    if manifest.complete
                    else "says that the traces are not complete [SL-manifest-incomplete]",
                )
            problem = "names no file [SL-manifest-no-files]"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as failure:
        problem = say_unreadable(failure)
    return None, f"{problem}, the traces are found by their content"


def read_dropped(path: Path) -> str:
    """`rank 0, 1: No space left on device`: whose traces were given up, and why; "" where none was or nobody says."""
    if find_problem(path, MANIFEST_BYTES):
        return ""
    try:
        entries = json.loads(path.read_bytes()).get("dropped") or []
        ranks: dict[str, list[int]] = {}
        for entry in entries:
            ranks.setdefault(str(entry["reason"]).strip().rstrip("."), []).append(int(entry["rank"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return "; ".join(f"rank {', '.join(map(str, sorted(who)))}: {reason}" for reason, who in ranks.items())


def find_problem(path: Path, most_bytes: int) -> str | None:
    """Why this is no file to open, without opening it: a pipe would wait for its writer."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except (OSError, ValueError) as failure:  # a name too long, or with a zero byte
        return say_unreadable(failure)
    if not stat.S_ISREG(status.st_mode):
        return f"is {KINDS.get(stat.S_IFMT(status.st_mode), 'a pipe or a device')}, not a file [SL-file-irregular]"
    if status.st_size > most_bytes:
        return f"takes more than {most_bytes / 2**30:g} GiB on the disk [SL-file-too-large]"
    return None
