"""What a rank is at, in a few words of memory that its launcher can see, whatever state the rank is in.

A store costs 50 ns and asks nobody: neither a stuck main thread nor a lock that is never given back keeps the launcher
from reading. Times are those of the monotonic clock, which all processes of a machine share, in ns.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = "STRATLAB_PULSE"
"""Of the launcher, for the ranks of its pod; without it a rank has a pulse that nobody sees."""
STEP, MOVES, ALIVE_NS, WAITING_NS, MOVED_NS, ASKED, TOLD, RANK, PROCESS, THREAD = range(10)
WORDS = 10


class HeartbeatReading(NamedTuple):
    """What the launcher reads."""

    step: int
    """0 = not yet in the first one."""
    moves: int
    """Grows with whatever the rank does that is no step."""
    alive_ns: int
    """When its witness has last run; a rank that is stopped, or keeps Python's lock, lets no witness run."""
    waiting_ns: int
    """Since when it waits for other ranks; 0 = it does not."""
    moved_ns: int
    """When the witness has last seen it go on."""
    asked: int
    told: int
    """The question that the witness has answered last."""
    rank: int
    process: int
    thread: int
    """Python's identity of the main thread."""


class Pulse:
    """The rank's side. `words[STEP] = step` is what the loop does; everything else calls `move`."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self.words = memoryview(_map(path)).cast("q")
        self.path = path
        self.words[RANK], self.words[PROCESS] = rank, os.getpid()
        self.words[THREAD] = threading.main_thread().ident or 0

    def move(self) -> None:
        """The rank goes on, outside of steps."""
        self.words[MOVES] += 1

    def read(self) -> HeartbeatReading:
        return HeartbeatReading(*self.words)


def open_pulse(env: Mapping[str, str], local_rank: int, rank: int) -> Pulse:
    """This rank's, in the launcher's folder if there is one."""
    folder = env.get(FOLDER)
    return Pulse(pulse_file(Path(folder), local_rank) if folder else None, rank)


def pulse_file(folder: Path, local_rank: int) -> Path:
    return folder / f"rank{local_rank}.pulse"


def answer_file(pulse: Path) -> Path:
    """Where the witness answers."""
    return pulse.with_suffix(".json")


def stack_file(pulse: Path) -> Path:
    """Where the signal leaves the Python stack."""
    return pulse.with_suffix(".stack")


class Listener:
    """The launcher's side of one rank.

    Raises:
        OSError, ValueError: the rank has not made its file yet.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 8 * WORDS)).cast("q")
            self.inode = os.fstat(file.fileno()).st_ino
        self.path = path

    def read(self) -> HeartbeatReading:
        return HeartbeatReading(*self.words)

    def ask(self) -> int:
        """Asks the witness what it knows; the number of the question."""
        self.words[ASKED] += 1
        return self.words[ASKED]


def _map(path: Path | None) -> mmap.mmap | bytearray:
    if path is None:
        return bytearray(8 * WORDS)
    aside = path.with_suffix(".new")
    aside.write_bytes(bytes(8 * WORDS))
    with open(aside, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 8 * WORDS)
    os.replace(aside, path)
    return memory
