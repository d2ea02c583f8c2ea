"""Finds one trace file per rank, and names every file that is not used and why.

HTA's own discovery is not used: it takes any JSON file for a trace and loses ranks silently. Here the rank
comes from manifest.json, else from distributedInfo in the file, else from the file's name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from stratlab.traces.chunks import LIMITS, Limits, TraceError
from stratlab.traces.trace import read_rank

MANIFEST = "manifest.json"
RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


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


@dataclass(frozen=True)
class Finding:
    """What is wrong with the traces. `skipped` = the file or rank is not analysed, `noted` = it is."""

    action: Literal["skipped", "noted"]
    reason: str
    file: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Found:
    """`files`: one per rank, checked against the manifest, but not yet decoded."""

    files: dict[int, Path]
    findings: list[Finding]
    manifest: Manifest | None


def find_traces(folder: Path, world_size: int | None, limits: Limits = LIMITS) -> Found:
    """Looks through `folder` (the run's traces/), which may be missing or empty."""
    findings: list[Finding] = []
    manifest = _read_manifest(folder / MANIFEST, findings)
    files: dict[int, Path] = {}
    listed = {entry.file for entry in manifest.files} if manifest else set()
    for rank, name, problem in [
        *(_check_entry(folder, entry, limits) for entry in (manifest.files if manifest else [])),
        *(_check_unlisted(path, manifest, limits) for path in _unlisted(folder, listed)),
    ]:
        if problem is None and world_size is not None and not 0 <= (rank or 0) < world_size:
            problem = f"rank {rank} of a run with {world_size} processes"
        if problem is None and rank in files:
            problem = f"a second trace of rank {rank}, {files[rank].name} is used"
        if problem is None and rank is not None:
            files[rank] = folder / name
        else:
            findings.append(Finding("skipped", problem or "names no rank", name, rank))
    return Found(dict(sorted(files.items())), findings, manifest)


def _read_manifest(path: Path, findings: list[Finding]) -> Manifest | None:
    if not path.is_file():
        findings.append(Finding("noted", "is missing, the traces are found by their content", MANIFEST))
        return None
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        reason = f"is not readable ({failure}), the traces are found by their content"
        findings.append(Finding("noted", reason, MANIFEST))
        return None
    if not manifest.complete:
        findings.append(Finding("noted", "says that the traces are not complete", MANIFEST))
    return manifest


def _unlisted(folder: Path, listed: set[str]) -> list[Path]:
    """Files that may be traces. First those whose name and content agree, so that they win over copies."""
    if not folder.is_dir():
        return []
    names = [p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz", ".tmp", ".gz"))]
    rest = [p for p in names if p.name != MANIFEST and p.name not in listed]
    return sorted(rest, key=lambda p: (not _agrees(p), p.name))


def _agrees(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink() and read_rank(path) == _rank_of_name(path.name)
    except (TraceError, OSError):
        return False


def _check_entry(folder: Path, entry: Entry, limits: Limits) -> tuple[int, str, str | None]:
    path = folder / entry.file
    if Path(entry.file).name != entry.file or path.is_symlink():
        return entry.rank, entry.file, "the manifest points outside the traces"
    if not path.is_file():
        return entry.rank, entry.file, "listed in the manifest, but missing"
    size = path.stat().st_size
    if size != entry.bytes:
        return entry.rank, entry.file, f"has {size} bytes, {entry.bytes} in the manifest"
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
            return entry.rank, entry.file, "differs from the manifest (sha256)"
    rank, problem = _read_rank(path, limits)
    if problem is None and rank not in (None, entry.rank):
        problem = f"rank {entry.rank} in the manifest, rank {rank} in the file"
    return entry.rank, entry.file, problem


def _check_unlisted(
    path: Path, manifest: Manifest | None, limits: Limits
) -> tuple[int | None, str, str | None]:
    in_name = _rank_of_name(path.name)
    if path.name.startswith(".") or ".tmp" in path.suffixes:
        return in_name, path.name, "a temporary file: its writer did not finish"
    if not path.is_file() or path.is_symlink():
        return in_name, path.name, "not a regular file"
    if manifest and manifest.complete:
        return in_name, path.name, "not in the manifest, which is complete"
    rank, problem = _read_rank(path, limits)
    return in_name if rank is None else rank, path.name, problem


def _read_rank(path: Path, limits: Limits) -> tuple[int | None, str | None]:
    try:
        return read_rank(path, limits), None
    except TraceError as failure:
        return None, str(failure)
    except OSError as failure:
        return None, f"not readable ({failure.strerror})"


def _rank_of_name(name: str) -> int | None:
    found = RANK_IN_NAME.search(name)
    return int(found[1]) if found else None
