"""Size and sha256 of every file of a checkpoint: what proves later that it is whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.record.run_directory import write_json

MANIFEST = "manifest.json"
COMMIT = "COMMIT"
THREADS = 8  # hashlib leaves the interpreter's lock to others while it works


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and hash of files that this rank wrote, each durable and read back from the volume.

    Raises:
        OSError: one of them is not there, or the volume is full.
    """
    names = sorted(names)
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(
            zip(names, pool.map(lambda name: _describe(folder / name, sync=True), names), strict=True)
        )


def seal(folder: Path, files: dict[str, dict[str, Any]]) -> int:
    """Writes manifest.json, then COMMIT; returns the bytes of the files.

    Args:
        files: of every rank, as `describe_files` found them.
    """
    write_json(folder / MANIFEST, {"schema_version": 1, "files": dict(sorted(files.items()))})
    write_json(folder / COMMIT, {"manifest_sha256": _describe(folder / MANIFEST)["sha256"]})
    return sum(entry["bytes"] for entry in files.values())


def compare_files(folder: Path, files: dict[str, dict[str, Any]]) -> str | None:
    """What is wrong with files of a checkpoint, or None; reads every byte of them."""
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda item: _compare(folder, *item), files.items())
        return next((problem for problem in found if problem), None)


def find_problem(
    folder: Path, compare: Callable[[Path, dict[str, dict[str, Any]]], str | None] = compare_files
) -> str | None:
    """What is wrong with a committed checkpoint, or None; every byte of it is read.

    Args:
        compare: looks at the files that the manifest names.
    """
    try:
        promised = json.loads((folder / COMMIT).read_text())["manifest_sha256"]
        if _describe(folder / MANIFEST)["sha256"] != promised:
            return f"{MANIFEST} is not the one that was committed [SL-manifest-changed]"
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError) as failure:
        return f"{COMMIT} or {MANIFEST} cannot be read ({failure}) [SL-commit-unreadable]"
    return compare(folder, files)


def _compare(folder: Path, name: str, promised: dict[str, Any]) -> str | None:
    try:
        size = (folder / name).stat().st_size
        if size != promised["bytes"]:
            return f"{name} has {size} bytes instead of {promised['bytes']} [SL-file-size]"
        if _describe(folder / name)["sha256"] != promised["sha256"]:
            return f"the content of {name} has changed [SL-file-changed]"
    except FileNotFoundError:
        return f"{name} is missing [SL-checkpoint-file-missing]"
    except OSError as failure:
        return f"{name} cannot be read ({failure}) [SL-checkpoint-file-unreadable]"
    return None


def _describe(path: Path, sync: bool = False) -> dict[str, Any]:
    with open(path, "rb") as file:
        if sync:  # what this machine wrote; a network volume flushes what others wrote when they close it
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}
