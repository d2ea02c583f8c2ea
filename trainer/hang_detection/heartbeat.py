"""Share a rank's activity with its launcher in a few words of memory, readable in any state of the rank.

A store takes 50 ns and needs no other thread: the launcher can read even if the main thread is stuck or a lock is
never released. Times are from the monotonic clock, which all processes of a machine share, in ns.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = "STRATLAB_PULSE"
"""Environment variable from the launcher for the ranks of its pod; without it, the pulse is private."""
STEP, MOVES, ALIVE_NS, WAITING_NS, MOVED_NS, ASKED, TOLD, RANK, PROCESS, THREAD = range(10)
WORDS = 10


class HeartbeatReading(NamedTuple):
    """One reading of a rank's memory by the launcher."""

    step: int
    """0 = before the first step."""
    moves: int
    """Grows with every activity that is not a step."""
    alive_ns: int
    """Time of the watchdog thread's last run; a stopped rank, or one holding Python's lock, does not update it."""
    waiting_ns: int
    """Start of the wait for other ranks; 0 = not waiting."""
    moved_ns: int
    """Time at which the watchdog thread last saw progress."""
    asked: int
    told: int
    """Number of the last question that the watchdog thread answered."""
    rank: int
    process: int
    thread: int
    """Python's identifier of the main thread."""


class Pulse:
    """The rank's side: the loop sets `words[STEP] = step`, all other activity calls `move`."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self.words = memoryview(_map(path)).cast("q")
        self.path = path
        self.words[RANK], self.words[PROCESS] = rank, os.getpid()
        self.words[THREAD] = threading.main_thread().ident or 0

    def move(self) -> None:
        """Report progress outside of steps."""
        self.words[MOVES] += 1

    def read(self) -> HeartbeatReading:
        return HeartbeatReading(*self.words)


def open_pulse(env: Mapping[str, str], local_rank: int, rank: int) -> Pulse:
    """Return this rank's pulse, in the launcher's folder if there is one."""
    folder = env.get(FOLDER)
    return Pulse(pulse_file(Path(folder), local_rank) if folder else None, rank)


def pulse_file(folder: Path, local_rank: int) -> Path:
    return folder / f"rank{local_rank}.pulse"


def answer_file(pulse: Path) -> Path:
    """Return the file in which the watchdog thread answers."""
    return pulse.with_suffix(".json")


def stack_file(pulse: Path) -> Path:
    """Return the file in which the signal writes the Python stack."""
    return pulse.with_suffix(".stack")


class Listener:
    """The launcher's side of one rank.

    Raises:
        OSError, ValueError: the rank has not created its file yet.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 8 * WORDS)).cast("q")
            self.inode = os.fstat(file.fileno()).st_ino
        self.path = path

    def read(self) -> HeartbeatReading:
        return HeartbeatReading(*self.words)

    def ask(self) -> int:
        """Ask the watchdog thread for its state; return the number of the question."""
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
