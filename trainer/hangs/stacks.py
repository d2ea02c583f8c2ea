"""A rank's Python stack, written by C code inside a signal: it needs neither the main thread nor Python's lock.

A process that is stopped (SIGSTOP, a frozen container) writes nothing; /proc says that it is.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from pathlib import Path
from typing import IO, NamedTuple

ASK = signal.SIGUSR2  # the first one tells a rank to stop
INNERMOST = 3
"""Frames: a wait inside of torch is at most so far below the line that waits."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_ours(self) -> bool:
        """Of the trainer, and not of what looks at it."""
        outside = "/site-packages/" in self.file or "/tests/" in self.file
        return "/trainer/" in self.file and not outside and not self.is_wait

    @property
    def is_wait(self) -> bool:
        """Of what waits for other ranks."""
        return "/torch/distributed/" in self.file or self.file.endswith(
            ("/hangs/alone.py", "/deepspeed/comm/torch.py")
        )

    def __str__(self) -> str:
        name = (
            f"trainer/{self.file.rpartition('/trainer/')[2]}"
            if self.is_ours
            else "/".join(Path(self.file).parts[-3:])
        )
        return f"{name}:{self.line} {self.function}"


def write_stacks_to(file: IO[str]) -> None:
    """From now on the signal `ASK` adds the stacks of all threads; the file stays open as long as the process."""
    faulthandler.register(ASK, file=file, all_threads=True, chain=False)


def read_stack(text: str, thread: int) -> list[Frame]:
    """Of one thread, the innermost frame first; of the newest dump in `text`. Empty where there is none.

    Args:
        thread: Python's identity of it.
    """
    found: list[Frame] = []
    inside = False
    for line in text.splitlines():
        if head := _THREAD.match(line):
            inside = int(head[1], 16) == thread
            found = [] if inside else found
        elif inside and (frame := _FRAME.match(line)):
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            found.append(Frame(frame["file"], number, frame["function"]))
    return found


def is_waiting(stack: list[Frame]) -> bool:
    """Whether the innermost frames wait for other ranks."""
    return any(frame.is_wait for frame in stack[:INNERMOST])


def read_process_state(process: int) -> str:
    """As in `ps`: R running, S asleep, D waiting for a disk, T stopped, Z ended; "" = gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
