"""Ranks that do not arrive, planted into the real worker: one rank, at one step, in one of four ways."""

import ctypes
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

FOREVER_S = 600
FROM_STEP = 4
HUNG_AT = "hung-at"
"""A file among the results, with the moment."""


def sleep_in_python() -> None:
    """As a wait for a lock or a server: other threads run."""
    time.sleep(FOREVER_S)


def keep_the_lock() -> None:
    """As a C extension that never gives Python's lock back: no other thread runs, and no signal ends it."""
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def read_what_never_comes() -> None:
    """As a data set on a volume that is gone."""
    pipe = Path(tempfile.mkdtemp()) / "pipe"
    os.mkfifo(pipe)
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
    pipe.read_bytes()


WAYS = {
    "python": sleep_in_python, "lock": keep_the_lock, "stopped": stop_itself,
    "data": read_what_never_comes,
}  # fmt: skip


def plant(way: str, rank: int, step: int = FROM_STEP, place: str = "data") -> None:
    """In this process, if it is that rank."""
    from trainer.tasks.image_task import ImageTask  # by all ranks, so that they start alike
    from trainer.tasks.text_task import TextTask

    if int(os.environ["RANK"]) != rank:
        return

    def hang() -> None:
        (Path(os.environ["TRAINER_RESULTS"]) / HUNG_AT).write_text(str(time.time()))
        WAYS[way]()

    for task in (ImageTask, TextTask):
        _wrap(task, hang, step, place)


def _wrap(task: Any, hang: Any, step: int, place: str) -> None:
    whole = task.next_batch

    def next_batch(self: Any, number: int) -> Any:
        if number == step:
            if place == "data":
                hang()
            else:
                _hang_in_backward(hang)
        return whole(self, number)

    task.next_batch = next_batch


def _hang_in_backward(hang: Any) -> None:
    from torch import Tensor

    whole = Tensor.backward

    def backward(self: Tensor, *arguments: Any, **named: Any) -> None:
        self.register_hook(lambda gradient: hang())
        whole(self, *arguments, **named)

    Tensor.backward = backward  # type: ignore[method-assign]
