"""Counts of several engines beside each other, each in a process that is forked from the one that has loaded torch.

Loading torch and DeepSpeed costs seconds and most of the memory: forked processes share both.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from trainer.failures import DataMissing

Task = TypeVar("Task")
Result = TypeVar("Result")
PR_SET_PDEATHSIG = 1
MOST = 2
"""At once: each engine takes room of its own."""


def count_side_by_side(
    count: Callable[[Task], Result],
    tasks: Sequence[Task],
    order: Sequence[int],
    begins: Callable[[Task], None],
) -> Iterator[Result]:
    """What `count` makes of each task, in the order of the tasks; in this process where there is one processor or task.

    Args:
        count: a function of a module.
        order: places of the tasks, those that take longest first.
        begins: hears of a task when it is due.

    Raises:
        DataMissing: a process was killed, for memory as a rule.
        Whatever `count` raises.
    """
    processes = min(MOST, len(tasks), len(os.sched_getaffinity(0)))
    if processes < 2:
        for task in tasks:
            begins(task)
            yield count(task)
        return
    with ProcessPoolExecutor(processes, get_context("fork"), initializer=_end_with_parent) as pool:
        try:
            futures = {place: pool.submit(count, tasks[place]) for place in order}
            for place, task in enumerate(tasks):
                begins(task)
                yield futures[place].result()
        except BrokenProcessPool as failure:
            raise DataMissing(
                "a process that counted was killed, for memory as a rule [SL-count-killed]"
            ) from failure
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Ctrl-C ends it without a word, unless that is ignored; and so does the end of whoever waits for it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
