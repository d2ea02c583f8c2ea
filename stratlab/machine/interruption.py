"""The signals that ask this program to end become an exception, so that `finally` cleans up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Interrupted(BaseException):
    """The user or the system wants this program to end. `code` is the exit code for that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def signals_raise() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise `Interrupted`, once: a second one does not disturb the cleaning up."""
    with _raising((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def interrupt_raises() -> Iterator[None]:
    """The same of SIGINT alone, for verbs that have nothing to clean up; unless whoever started them has it ignored,
    as `nohup command &` does."""
    with _raising((signal.SIGINT,) if signal.getsignal(signal.SIGINT) is signal.default_int_handler else ()):
        yield


@contextmanager
def _raising(numbers: tuple[signal.Signals, ...]) -> Iterator[None]:

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
