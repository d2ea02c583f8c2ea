"""Who is at work: numbered files in one folder. The highest number is the owner.

A lock whose heartbeat stops is never deleted or overwritten but outnumbered, and only one process can create the next
number. So two that find the same stale lock cannot both take over, and an owner that was only paused sees that it was
overtaken. Staleness is "has not changed while I watched", so that the clocks of the nodes do not matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BEATS = 6  # heartbeats in the time after which a lock counts as stale


class Overtaken(Exception):
    """Another process has taken this one for dead and does its work."""


@dataclass(frozen=True)
class Seen:
    """A lock as it was looked at."""

    number: int
    heartbeat: int
    since_s: float
    """when this heartbeat was first seen, on the clock of the one who looks"""
    owner: str
    stale_after_s: float

    def is_stale(self, now_s: float) -> bool:
        return now_s - self.since_s > self.stale_after_s


def observe(folder: Path, before: Seen | None, now_s: float, stale_after_s: float) -> Seen | None:
    """The newest lock in the folder, None without one.

    Args:
        before: what the last call returned.
        stale_after_s: for a lock that does not say so itself, because its owner died while writing it.
    """
    number = _newest(folder)
    if number is None:
        return None
    try:
        with open(
            folder / str(number)
        ) as file:  # NFS asks the server for the time when a file is opened, only then
            heartbeat, text = os.fstat(file.fileno()).st_mtime_ns, file.read()
    except FileNotFoundError:
        return None
    try:
        facts = json.loads(text)
    except json.JSONDecodeError:
        facts = {"owner": "unknown", "stale_after_s": stale_after_s}
    same = before is not None and (before.number, before.heartbeat) == (number, heartbeat)
    since_s = before.since_s if before is not None and same else now_s
    return Seen(number, heartbeat, since_s, facts["owner"], facts["stale_after_s"])


class Lock:
    """A lock that this process holds."""

    def __init__(self, folder: Path, number: int, text: str) -> None:
        self.folder = folder
        self.number = number
        self.path = folder / str(number)
        self._text = text
        self._lost = threading.Event()

    def beat(self) -> None:
        """Says "alive", and notices when nobody believes it any more."""
        with contextlib.suppress(OSError):  # a full or slow volume; the next beat may get through
            if self._is_held():
                os.utime(self.path)
            else:
                self._lost.set()

    def check(self) -> None:
        """Raises Overtaken where another process has taken over."""
        if self._lost.is_set() or not self._is_held():
            raise Overtaken

    def release(self) -> None:
        """Removes this lock and the stale ones below it; nothing where another process has taken over."""
        if not self._is_held():
            return
        for number in _numbers(self.folder):
            (self.folder / str(number)).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody's next lock is in it
            self.folder.rmdir()

    def _is_held(self) -> bool:
        """Whether this is the newest lock, and the file still the one that this process wrote."""
        if _newest(self.folder) != self.number:
            return False
        try:
            return self.path.read_text() == self._text
        except FileNotFoundError:
            return False


def acquire(folder: Path, number: int, stale_after_s: float) -> Lock | None:
    """The lock of this number, or None where another process was faster."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except (FileExistsError, FileNotFoundError):  # taken; or the folder went with the lock before
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
    """Calls `action` every so many seconds, from a thread, until the block is left."""
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
