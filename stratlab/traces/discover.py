"""Find one trace file per rank, and name every unused file with the reason.

HTA's own discovery is not used: it treats any JSON file as a trace and loses ranks silently. Here the rank comes from
manifest.json, else from distributedInfo in the file, else from the file's name. The manifest lists the files that the
run wrote; each entry is checked against its file.
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
NAME_NO_TEXT = "its name holds bytes that are not text [SL-name-no-text]"
KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder"}


class ManifestEntry(msgspec.Struct):
    """Describe one file of the manifest."""

    rank: int
    file: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct):
    """Hold traces/manifest.json, which rank 0 writes when every trace is complete."""

    complete: bool
    files: list[ManifestEntry]
    first_step: int = 0
    steps: int = 0


def read_manifest(path: Path) -> tuple[Manifest | None, str | None]:
    """Return the manifest, None if it is unusable, and a remark for the report."""
    try:
        problem = find_problem(path, MANIFEST_BYTES)
        if problem is None:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
            if manifest.files:
                remark = "marks the traces as incomplete [SL-manifest-incomplete]"
                return manifest, None if manifest.complete else remark
            problem = "does not name any file [SL-manifest-no-files]"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as failure:
        problem = say_unreadable(failure)
    return None, f"{problem}, the traces are found by their content"


def read_dropped(path: Path) -> str:
    """Return `rank 0, 1: No space left on device`: the dropped traces with the reason; "" without any."""
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
    """Return why the path is not a readable file, without opening it: opening a pipe would wait for its writer."""
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
MOST_RANKS = 1 << 31  # if the run does not set a number
ONLY_TRACE = "does not name a rank; the only trace counts as rank 0 [SL-rank-only-trace]"
NOT_THERE = "listed in the manifest, but missing [SL-manifest-file-missing]"


@dataclass(frozen=True)
class TraceFinding:
    """Describe a problem of the traces. `skipped` = the file or rank is not analysed, `noted` = it is."""

    action: Literal["skipped", "noted"]
    reason: str
    file: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Found:
    """Hold `files`: one per rank, checked against the manifest, but not yet decoded."""

    files: dict[int, Path]
    findings: list[TraceFinding]
    manifest: Manifest | None


@dataclass(frozen=True)
class _Candidate:
    """Describe a possible trace of `rank`. `problem`: why it is not used; `remark`: other irregularities."""

    file: str
    rank: int | None
    problem: str | None = None
    remark: str | None = None


def say_outside(rank: int, world_size: int | None) -> str:
    """Describe a trace whose rank does not exist in the run."""
    return f"rank {rank} of a run with {world_size or 'any number of'} processes [SL-rank-outside]"


def find_traces(folder: Path, world_size: int | None) -> Found:
    """Search `folder` (the run's traces/), which may be missing or empty. Never raises for its content."""
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
            problem = "does not name a rank [SL-rank-untold]"
        elif problem is None and rank is not None and not 0 <= rank < (world_size or MOST_RANKS):
            problem = say_outside(rank, world_size)
        elif problem is None and rank in files:
            problem = f"a second trace of rank {rank}; {files[rank].name} is used [SL-rank-second-trace]"
        if problem is None and rank is not None:
            files[rank] = folder / candidate.file
        if why := problem or candidate.remark:
            findings.append(TraceFinding("skipped" if problem else "noted", why, candidate.file, rank))
    return Found(dict(sorted(files.items())), findings, manifest)


def _list_names(folder: Path, findings: list[TraceFinding]) -> set[str]:
    """Return files that may be traces: by their ending, or by a rank in their name."""
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
            return f"has {size} bytes, but {entry.bytes} in the manifest [SL-manifest-size]"
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return "differs from the manifest (sha256) [SL-manifest-sha256]"
    except OSError as failure:
        return say_unreadable(failure.strerror)
    identity = read_identity(path, behind=False)
    if identity.problem is None and identity.rank not in (None, entry.rank):
        return f"rank {entry.rank} in the manifest, but rank {identity.rank} in the file [SL-manifest-rank]"
    return identity.problem


def _check_unlisted(folder: Path, name: str, is_closed: bool) -> _Candidate:
    in_name, path = _rank_of(name), folder / name
    if not name.isprintable():  # also not UTF-8: a report cannot contain such a name
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
    """Rate one of two traces of a rank; the lower one is used: its name agrees with its rank, and it is not a copy."""
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
