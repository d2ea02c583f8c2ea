"""Manage the destination folder: its lock, its completion record and the final rename.

The lock is a folder of numbered files. The highest number is the owner. A lock whose heartbeat stops is never deleted
or overwritten: a new owner creates the next number, which only one process can do. Two processes that find the same
stale lock therefore cannot both become owners, and a paused owner notices that it was replaced. A lock is stale if it
did not change while this process watched it, so the clocks of the nodes do not matter.

`read_done` checks an existing folder, `write_done` records a finished one, and `publish` renames it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.run_directory import write_json
from stratlab_spec.settings.config import ConfigError
from trainer.data.files import walk_files
from trainer.data.text.token_cache import DONE, PREPARED
from trainer.prepare.origin import WrittenFolder
from trainer.prepare.request import Request

BEATS = 6  # heartbeats within the time after which a lock is stale


class Overtaken(Exception):
    """Another process considers this process dead and does its work."""


@dataclass(frozen=True)
class SeenLock:
    """A lock as observed once."""

    number: int
    heartbeat: int
    since_s: float
    """when this heartbeat was first seen, on the observer's clock"""
    owner: str
    stale_after_s: float

    def is_stale(self, now_s: float) -> bool:
        return now_s - self.since_s > self.stale_after_s


def observe(folder: Path, before: SeenLock | None, now_s: float, stale_after_s: float) -> SeenLock | None:
    """Return the newest lock in the folder, None without one.

    Args:
        before: result of the previous call.
        stale_after_s: for a lock without its own value, because its owner died while writing it.
    """
    number = _newest(folder)
    if number is None:
        return None
    try:
        with open(folder / str(number)) as file:  # opening makes NFS ask the server for the file's time
            heartbeat, text = os.fstat(file.fileno()).st_mtime_ns, file.read()
    except FileNotFoundError:
        return None
    try:
        facts = json.loads(text)
    except json.JSONDecodeError:
        facts = {"owner": "unknown", "stale_after_s": stale_after_s}
    same = before is not None and (before.number, before.heartbeat) == (number, heartbeat)
    since_s = before.since_s if before is not None and same else now_s
    return SeenLock(number, heartbeat, since_s, facts["owner"], facts["stale_after_s"])


class Lock:
    """A lock that this process holds."""

    def __init__(self, folder: Path, number: int, text: str) -> None:
        self.folder = folder
        self.number = number
        self.path = folder / str(number)
        self._text = text
        self._lost = threading.Event()

    def beat(self) -> None:
        """Write a heartbeat, and notice if another process is the owner now."""
        with contextlib.suppress(OSError):  # a full or slow volume; the next heartbeat may succeed
            if self._is_held():
                os.utime(self.path)
            else:
                self._lost.set()

    def check(self) -> None:
        """Raise Overtaken if another process is the owner now."""
        if self._lost.is_set() or not self._is_held():
            raise Overtaken

    def release(self) -> None:
        """Remove this lock and the stale ones below it, unless another process is the owner now."""
        if not self._is_held():
            return
        for number in _numbers(self.folder):
            (self.folder / str(number)).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another process's next lock is in the folder
            self.folder.rmdir()

    def _is_held(self) -> bool:
        """Return whether this is the newest lock and this process wrote its file."""
        if _newest(self.folder) != self.number:
            return False
        try:
            return self.path.read_text() == self._text
        except FileNotFoundError:
            return False


def acquire(folder: Path, number: int, stale_after_s: float) -> Lock | None:
    """Return the lock of this number, or None if another process was faster."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except (FileExistsError, FileNotFoundError):  # taken, or the folder was removed with the previous lock
        return None
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    text = json.dumps({"owner": owner, "start": uuid.uuid4().hex, "stale_after_s": stale_after_s})
    try:
        with open(descriptor, "w") as file:
            file.write(text)
    except OSError:  # a full volume
        (folder / str(number)).unlink()
        raise
    return Lock(folder, number, text)


@contextmanager
def ticking(interval_s: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` every `interval_s` seconds in a thread until the block ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(interval_s):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []


def _newest(folder: Path) -> int | None:
    return max(_numbers(folder), default=None)


PACKAGES = ("datasets", "huggingface-hub", "pyarrow", "safetensors")


class Destination:
    """Paths of one prepared data set, model or token cache."""

    def __init__(self, results: Path, name: str) -> None:
        self.root = results / PREPARED
        self.folder = self.root / name
        self.done = self.folder / DONE
        self.locks = self.root / f".{name}.locks"
        self._partial_prefix = f".{name}.partial-"

    def partial(self, token: str) -> Path:
        """Return the folder in which a start writes before the rename."""
        return self.root / f"{self._partial_prefix}{token}"

    def partials(self) -> list[Path]:
        """Return the partial folders of every start, dead ones included."""
        return sorted(path for path in self.root.iterdir() if path.name.startswith(self._partial_prefix))


def read_done(place: Destination, request: Request) -> dict[str, Any] | None:
    """Return the content of DONE.json, or None before the first preparation.

    Raises:
        ConfigError: the folder holds another source, or was not written by prepare.
        DataMissing: files are missing or changed their size.
    """
    try:
        done: dict[str, Any] = json.loads(place.done.read_text())
    except FileNotFoundError:
        if place.folder.is_dir() and any(place.folder.iterdir()) and not place.done.exists():
            raise ConfigError(
                f"--name {request.name!r}: {place.folder} exists and was not written by prepare "
                "[SL-prepared-foreign]"
            ) from None
        return None
    asked = {"kind": request.kind, "source": request.source, "subset": request.subset}
    if (
        request.revision not in (done["asked_revision"], done["revision"])
        or not asked.items() <= done.items()
    ):
        content = " ".join(filter(None, (done[key] for key in (*asked, "asked_revision"))))
        raise ConfigError(
            f"--name {request.name!r}: {place.folder} already holds {content}; "
            "choose another name, or remove the folder [SL-prepared-taken]"
        )
    for entry in done["files"]:
        path = place.folder / entry["path"]
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise DataMissing(
                f"{path}: missing, or its size differs from DONE.json; remove {place.folder} to start over "
                "[SL-prepared-changed]"
            )
    return done


def write_done(folder: Path, request: Request, written: WrittenFolder, seconds: float) -> dict[str, Any]:
    """Hash and sync every file, write DONE.json next to them, and return its content."""
    files = [_hash_file(path, folder) for path in walk_files(folder)]
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
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
        "versions": {"python": platform.python_version()} | versions,
        "seconds": round(seconds, 1),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": files,
    }
    write_json(folder / DONE, done)
    return done


def _hash_file(path: Path, folder: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    return {"path": str(path.relative_to(folder)), "bytes": size, "sha256": digest}


def publish(place: Destination, data: Path) -> None:
    """Rename the finished folder to its name.

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
