"""The folder under its name: whether it is there, whether it is what was asked for, and how it comes to be there."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainer.failures import DataMissing
from trainer.prepare.lock import Overtaken
from trainer.prepare.origin import Written
from trainer.prepare.request import Request
from trainer.record.run_directory import write_json
from trainer.settings.config import ConfigError

PACKAGES = ("datasets", "huggingface-hub", "pyarrow", "safetensors")

DONE = "DONE.json"
"""Of a prepared folder: it is whole."""


class Place:
    """Names of all that belongs to one prepared data set or model."""

    def __init__(self, results: Path, name: str) -> None:
        self.root = results / "_prepared"  # no comparison can be called so
        self.folder = self.root / name
        self.done = self.folder / DONE
        self.locks = self.root / f".{name}.locks"
        self._partial_prefix = f".{name}.partial-"

    def partial(self, token: str) -> Path:
        """Where a start writes, before the rename."""
        return self.root / f"{self._partial_prefix}{token}"

    def partials(self) -> list[Path]:
        """Of every start, also of dead ones."""
        return sorted(path for path in self.root.iterdir() if path.name.startswith(self._partial_prefix))


def read_done(place: Place, request: Request) -> dict[str, Any] | None:
    """The content of DONE.json, or None where nothing was prepared yet.

    Raises:
        ConfigError: the name is taken by another source, or by a folder that was not made here.
        DataMissing: files have gone or changed their size since.
    """
    try:
        done: dict[str, Any] = json.loads(place.done.read_text())
    except FileNotFoundError:
        if place.folder.is_dir() and any(place.folder.iterdir()) and not place.done.exists():
            raise ConfigError(
                [
                    (
                        f"--name {request.name!r}: {place.folder} is there and was not made by prepare "
                        "[SL-prepared-foreign]"
                    )
                ]
            ) from None
        return None
    _check_same(done, place, request)
    for entry in done["files"]:
        path = place.folder / entry["path"]
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise DataMissing(
                f"{path}: gone or of another size than in DONE.json; remove {place.folder} to start over "
                "[SL-prepared-changed]"
            )
    return done


def _check_same(done: dict[str, Any], place: Place, request: Request) -> None:
    asked = {"kind": request.kind, "source": request.source, "subset": request.subset}
    same_revision = request.revision in (done["asked_revision"], done["revision"])
    if same_revision and all(done[key] == value for key, value in asked.items()):
        return
    content = " ".join(
        [done["kind"], done["source"], *filter(None, (done["subset"], done["asked_revision"]))]
    )
    raise ConfigError(
        [
            f"--name {request.name!r}: {place.folder} holds {content} "
            f"already; choose another name, or remove the folder [SL-prepared-taken]"
        ]
    )


def write_done(folder: Path, request: Request, written: Written, seconds: float) -> dict[str, Any]:
    """Hashes every file, brings them to the disk, and writes DONE.json beside them; its content."""
    files = [_hash_file(path, folder) for path in _walk(folder)]
    lines = "".join(f"{entry['path']} {entry['sha256']}\n" for entry in files)
    done = {
        "schema_version": 1,
        "kind": request.kind,
        "source": request.source,
        "subset": request.subset,
        "asked_revision": request.revision,
        "revision": written.revision,
        "samples": written.samples,
        "parameters": written.parameters,
        "bytes": sum(entry["bytes"] for entry in files),
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "versions": _read_versions(),
        "seconds": round(seconds, 1),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": files,
    }
    write_json(folder / "DONE.json", done)
    return done


def publish(place: Place, data: Path) -> None:
    """Renames the finished folder to its name.

    Raises:
        Overtaken: another start was faster.
    """
    try:
        os.rename(data, place.folder)
    except OSError as failure:
        if failure.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Overtaken from failure
        raise
    descriptor = os.open(place.root, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Away with work in progress; what an NFS server still holds open stays."""
    shutil.rmtree(folder, ignore_errors=True)


def size_bytes(folder: Path) -> int:
    """Of all files, as far as they can be seen."""
    total = 0
    for path in _walk(folder):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names))


def _hash_file(path: Path, folder: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    return {"path": str(path.relative_to(folder)), "bytes": size, "sha256": digest}


def _read_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
