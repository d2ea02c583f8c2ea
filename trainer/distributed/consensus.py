"""Let all ranks decide together during training, at the same step: to stop, to save.

* Pace: the ranks exchange about once a second, counted in steps, because clocks would bring them to different steps.
  The distance follows from the step time of the slowest rank, which is the same number everywhere.
* Agreement: three numbers per rank, of each the maximum over all ranks, in a group on the CPUs next to the training
  group. It does not touch a stream or wait for a device. A rank waits for the others' hosts there, so a fast run does
  not exchange at every step. A lost peer raises an error in the collective as soon as its connection breaks.
* Stop: SIGUSR1 from the launcher only sets a flag. Before and after training it ends a rank immediately, which is the
  default of the signal. SIGTERM keeps its default: torch's agent uses it to end the siblings of a failed rank. The
  agent signals a rank's whole session. The signal is therefore blocked, which children inherit and survive by, and a
  thread waits for it, even while the main thread waits in a collective.
* Disk (`run_together`): one step of a checkpoint on every rank. Either all have done it, or all know that the volume
  is full.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stratlab_spec.exit_codes import Stopped, StorageFull, is_storage_full
from trainer.distributed.world import gather_objects

EVERY_S = 1.0
MOST_UNITS = 64
"""Units between two exchanges: if units become slower, the next exchange is late by at most these. Steps faster than
16 ms exchange more often than once a second; an exchange takes some tenths of a millisecond."""


class Pace:
    """The pace of one kind of work, counted in the same units (steps, batches) on every rank.

    Args:
        done: units done already.
        every_s: seconds between two exchanges; one unit if a unit takes longer.
    """

    def __init__(self, done: int = 0, every_s: float = EVERY_S) -> None:
        self.asked = done
        """The unit after the previous exchange."""
        self.due = done + 1
        """The unit after which the next exchange is due."""
        self._every_s = every_s

    @property
    def every(self) -> int:
        """Return the units between two exchanges."""
        return self.due - self.asked

    def set_back(self, done: int, unit_s: float) -> None:
        """Schedule the next exchange after one at unit `done`.

        Args:
            unit_s: seconds of a unit on the slowest rank. The distance at most doubles, because the first units of a
                run, and units next to an evaluation, do not predict the next ones.
        """
        most = min(2 * self.every, MOST_UNITS)
        fitting = int(self._every_s / unit_s) if unit_s > 0 else most
        self.asked, self.due = done, done + max(1, min(fitting, most))


AGREEMENT_GROUP = "agreement"
"""Axis name of the group, which separates kinds of traffic."""


class Agreement:
    """The agreement of one rank; every rank calls the same methods in the same order, except `want_*`.

    Args:
        timeout_s: time after which a rank without an answer is lost.
        from_step: the last step that the run does not repeat.
        every_s: seconds between two exchanges if steps are shorter.
    """

    def __init__(self, timeout_s: float, from_step: int = 0, every_s: float = EVERY_S) -> None:
        self._group = None
        if dist.get_world_size() > 1:
            timeout = timedelta(seconds=timeout_s)
            self._group = dist.new_group(timeout=timeout, backend="gloo", group_desc=AGREEMENT_GROUP)
        self.step = from_step
        """The last finished step."""
        self.save_agreed = False
        """Whether a rank wanted a checkpoint at the last exchange; equal on every rank."""
        self._stop_wanted = False
        self._save_wanted = False
        self._steps = Pace(from_step, every_s)
        self._batches = Pace(0, every_s)
        self._batch = 0
        self._asked_at = time.monotonic()

    def want_stop(self) -> None:
        """Request a stop of all ranks; only sets a flag, so it is safe in a signal handler."""
        self._stop_wanted = True

    def want_save(self) -> None:
        """Request a checkpoint; all ranks see `save_agreed` after one of the next steps."""
        self._save_wanted = True

    def end_step(self, step: int, recording: bool = False) -> None:
        """Exchange after a step if it is due.

        Args:
            recording: whether the profiler records; short recorded steps are not disturbed.

        Raises:
            Stopped: on every rank after the same step.
        """
        self.step = step
        self.save_agreed = False
        if step >= self._steps.due and not (recording and self._steps.every > 1):
            self._ask(self._steps, step)

    def end_batch(self) -> None:
        """Exchange between the batches of an evaluation, like `end_step`."""
        self._batch += 1
        if self._batch >= self._batches.due:
            self._ask(self._batches, self._batch)

    def ask_now(self) -> None:
        """Exchange immediately, before or after a long operation; otherwise like `end_step`."""
        self._reduce(0.0)

    def _ask(self, pace: Pace, unit: int) -> None:
        taken_s = time.monotonic() - self._asked_at
        pace.set_back(unit, self._reduce(taken_s / (unit - pace.asked)))
        self._asked_at = time.monotonic()

    def _reduce(self, unit_s: float) -> float:
        """Return the longest `unit_s` over all ranks."""
        stop, save = self._stop_wanted, self._save_wanted
        self._save_wanted = False
        if self._group is not None:
            wishes = torch.tensor([stop, save, unit_s], dtype=torch.float64)
            dist.all_reduce(wishes, op=dist.ReduceOp.MAX, group=self._group)
            stop, save, unit_s = wishes.tolist()
        self.save_agreed = self.save_agreed or bool(save)
        if stop:
            raise Stopped(f"behind step {self.step}")
        return unit_s

    def leave(self) -> None:
        """Wait for the others before the process ends, so that no rank reports it as lost."""
        if self._group is not None:
            dist.barrier(group=self._group)


STOP = signal.SIGUSR1


def listen(agreement: Agreement) -> None:
    """Handle stops by agreement with the other ranks; call it in the main thread."""

    def wait() -> None:
        while True:
            signal.sigwait({STOP})
            agreement.want_stop()

    signal.signal(
        STOP, lambda number, frame: agreement.want_stop()
    )  # delivered to a thread from before the block
    signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})
    threading.Thread(target=wait, name="stop", daemon=True).start()


SLOW_VOLUME_S = 3600
DISK_GROUP = "disk"
"""Axis name of the group, which separates kinds of traffic."""


def open_disk_group(timeout_s: int) -> Any:
    """Return a group on the hosts for file operations, so that no collective of the devices waits for a disk.

    The training thread uses it at the start, afterwards the writing thread. Its time-out is at least an hour, because
    volumes are slow and a lost peer is noticed by its broken connection.
    """
    timeout = timedelta(seconds=max(timeout_s, SLOW_VOLUME_S))
    return dist.new_group(backend="gloo", timeout=timeout, group_desc=DISK_GROUP)


def run_together(action: Callable[[], Any], folder: Path, group: Any = None) -> list[Any]:
    """Return the results of `action` of all ranks, in their order; also acts as a barrier.

    Args:
        folder: the folder that `action` writes to.
        group: process group of all ranks.

    Raises:
        StorageFull: on every rank, if the volume is full for one of them.
    """
    done, full = None, ""
    try:
        done = action()
    except Exception as failure:
        if not is_storage_full(failure):
            raise
        full = f"rank {dist.get_rank()}: {describe_full(failure, folder)}"
    answers = gather_objects((done, full), group)
    if sentences := [sentence for _, sentence in answers if sentence]:
        raise StorageFull(sentences[0])
    return [answer for answer, _ in answers]


def describe_full(failure: Exception, folder: Path) -> str:
    """Return the failure's last line and the free space."""
    lines = str(failure).strip().splitlines() or [type(failure).__name__]
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**20
    return f"{lines[-1][:300]} ({free:.0f} MiB free in {folder})"
