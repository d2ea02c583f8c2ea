"""One piece of work on a thread of its own, beside the one that trains."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")
NICENESS = 10
"""Whoever trains comes first where processors are scarce."""


class Background(Generic[Result]):
    """Starts at once.

    Args:
        device: of this process, for libraries that touch the current one; None: a processor.
    """

    def __init__(self, work: Callable[[], Result], device: torch.device | None = None) -> None:
        self._work = work
        self._device = device
        self._result: Result | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> Result:
        """What the work gave; raises what it raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    def _run(self) -> None:
        try:
            thread = threading.get_native_id()  # Linux: a priority is of one thread alone
            if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:  # to raise it is for root
                os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
            if self._device is not None:
                torch.cuda.set_device(self._device)  # each thread has its own current device
            self._result = self._work()
        except BaseException as failure:
            self._failure = failure
