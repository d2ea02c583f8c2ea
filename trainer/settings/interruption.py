"""Ctrl-C ends a command with one line, also while torch is imported, where an exception would pass through a hundred
modules, some of which swallow it."""

from __future__ import annotations

import os
import signal
from types import FrameType


def end_at_interrupt() -> None:
    """From here on SIGINT ends this process at once with 130; those that it forked end with it (`side_by_side`).

    Whoever has it ignored, as `nohup command &` does, keeps that.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            os.write(2, b"stopped by SIGINT\n")
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)
