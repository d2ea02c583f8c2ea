"""Finds one trace file per rank, and names every file that is not used and why.

HTA's own discovery is not used: it takes any JSON file for a trace and loses ranks silently. Here the rank comes from
manifest.json, else from distributedInfo in the file, else from the file's name. The manifest says which files the run
wrote; it is believed only as far as the files agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from stratlab.traces.chunks import LIMITS, say_unreadable
from stratlab.traces.rank_identity import read_identity, say_other_name

MANIFEST = "manifest.json"
MANIFEST_BYTES = 16 << 20  # 160 bytes per rank
MISSING = "is missing [SL-trace-file-missing]"
NAME_NO_TEXT = "its name holds bytes that are no text [SL-name-no-text]"
KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder"}


class ManifestEntry(msgspec.Struct):
    """One file of the manifest."""

    rank: int
    file: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct):
    """traces/manifest.json, written by rank 0 when every trace is complete."""

    complete: bool
    files: list[ManifestEntry]
    first_step: int = 0
    steps: int = 0


def read_manifest(path: Path) -> tuple[Manifest | None, str | None]:
    """The manifest, None if it cannot be used, and what a reader of the report must know of it."""
    try:
        problem = find_problem(path, MANIFEST_BYTES)
        if problem is None:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
            if manifest.files:
                remark = "says that the traces are not complete [SL-manifest-incomplete]"
                return manifest, None if manifest.complete else remark
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


RANK_IN_NAME = re.compile(r"rank[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
TRACE_NAME = re.compile(r"rank\d+_trace\.json(\.gz)?")  # as the trainer writes it
SUFFIXES = (".json", ".gz")
MOST_RANKS = 1 << 31  # where the run does not tell
ONLY_TRACE = "names no rank, the only trace counts as rank 0 [SL-rank-only-trace]"
NOT_THERE = "listed in the manifest, but missing [SL-manifest-file-missing]"


@dataclass(frozen=True)
class TraceFinding:
    """What is wrong with the traces. `skipped` = the file or rank is not analysed, `noted` = it is."""

    action: Literal["skipped", "noted"]
    reason: str
    file: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Found:
    """`files`: one per rank, checked against the manifest, but not yet decoded."""

    files: dict[int, Path]
    findings: list[TraceFinding]
    manifest: Manifest | None


@dataclass(frozen=True)
class _Candidate:
    """A file that may be the trace of `rank`; `problem`: why it is not used; `remark`: what else is odd."""

    file: str
    rank: int | None
    problem: str | None = None
    remark: str | None = None


def say_outside(rank: int, world_size: int | None) -> str:
    """Of a trace of a rank that the run does not have."""
    return f"rank {rank} of a run with {world_size or 'any number of'} processes [SL-rank-outside]"


def find_traces(folder: Path, world_size: int | None) -> Found:
    """Looks through `folder` (the run's traces/), which may be missing or empty. Never raises for what lies there."""
    manifest, remark = read_manifest(folder / MANIFEST)
    findings = [TraceFinding("noted", remark, MANIFEST)] if remark else []
    entries = manifest.files if manifest else []
    listed = [_Candidate(e.file, e.rank, _find_mismatch(folder / e.file, e)) for e in entries]
    names = _list_names(folder, findings) - {MANIFEST} - {candidate.file for candidate in listed}
    is_closed = manifest is not None and manifest.complete
    others = [_check_unlisted(folder, name, is_closed) for name in sorted(names)]
    candidates = [*listed, *sorted(others, key=_rate)]
    if len(candidates) == 1 and candidates[0].rank is None and candidates[0].problem is None:
        candidates = [_Candidate(candidates[0].file, 0, None, ONLY_TRACE)]
    files: dict[int, Path] = {}
    for candidate in candidates:
        rank, problem = candidate.rank, candidate.problem
        if problem is None and rank is None:
            problem = "names no rank [SL-rank-untold]"
        elif problem is None and rank is not None and not 0 <= rank < (world_size or MOST_RANKS):
            problem = say_outside(rank, world_size)
        elif problem is None and rank in files:
            problem = f"a second trace of rank {rank}, {files[rank].name} is used [SL-rank-second-trace]"
        if problem is None and rank is not None:
            files[rank] = folder / candidate.file
        if why := problem or candidate.remark:
            findings.append(TraceFinding("skipped" if problem else "noted", why, candidate.file, rank))
    return Found(dict(sorted(files.items())), findings, manifest)


def _list_names(folder: Path, findings: list[TraceFinding]) -> set[str]:
    """Files that may be traces: by their ending, or by a rank in their name."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return set()
    except OSError as failure:
        findings.append(TraceFinding("noted", say_unreadable(failure.strerror), folder.name))
        return set()
    return {name for name in names if name.endswith((*SUFFIXES, ".tmp")) or RANK_IN_NAME.search(name)}


def _find_mismatch(path: Path, entry: ManifestEntry) -> str | None:
    if Path(entry.file).name != entry.file:
        return "the manifest points outside the traces [SL-manifest-outside]"
    if problem := find_problem(path, LIMITS.raw_bytes):
        return NOT_THERE if problem == MISSING else problem
    try:
        if (size := path.stat().st_size) != entry.bytes:
            return f"has {size} bytes, {entry.bytes} in the manifest [SL-manifest-size]"
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return "differs from the manifest (sha256) [SL-manifest-sha256]"
    except OSError as failure:
        return say_unreadable(failure.strerror)
    identity = read_identity(path, behind=False)
    if identity.problem is None and identity.rank not in (None, entry.rank):
        return f"rank {entry.rank} in the manifest, rank {identity.rank} in the file [SL-manifest-rank]"
    return identity.problem


def _check_unlisted(folder: Path, name: str, is_closed: bool) -> _Candidate:
    in_name, path = _rank_of(name), folder / name
    if not name.isprintable():  # also what is not UTF-8: a report could not be written with it
        return _Candidate(ascii(name)[1:-1], in_name, NAME_NO_TEXT)
    problem = find_problem(path, LIMITS.raw_bytes)
    if problem is None and (name.startswith(".") or ".tmp" in path.suffixes):
        problem = "a temporary file: its writer did not finish [SL-file-temporary]"
    elif problem is None and not name.endswith(SUFFIXES):
        problem = "its name does not end in .json or .gz [SL-trace-ending]"
    elif problem is None and is_closed:
        problem = "not in the manifest, which is complete [SL-manifest-unlisted]"
    if problem is not None:
        return _Candidate(name, in_name, problem)
    identity = read_identity(path, behind=in_name is None)
    if identity.problem is not None or identity.rank is None:
        return _Candidate(name, in_name, identity.problem)
    remark = say_other_name(in_name, identity.rank) if in_name not in (None, identity.rank) else None
    return _Candidate(name, identity.rank, None, remark)


def _rate(candidate: _Candidate) -> tuple[bool, bool, bool, str]:
    """Of two traces of a rank the lower one is used: not the one whose name says another, nor a copy."""
    name = candidate.file
    return (
        candidate.remark is not None,
        candidate.rank != _rank_of(name),
        not TRACE_NAME.fullmatch(name),
        name,
    )


def _rank_of(name: str) -> int | None:
    found = RANK_IN_NAME.search(name)
    return int(found[1]) if found else None
