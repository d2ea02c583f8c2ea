"""What all ranks decide together while they train: to stop, to save; at the same step on every one.

pace         Asked about once a second, counted in steps: a clock would bring the ranks to different ones. The distance
             is worked out from how long the slowest rank has taken for a step, which is the same number everywhere.
agreement    Three numbers per rank, the greatest of each over all ranks, by a group on the CPUs beside the one that
             trains: nothing waits for a device, no stream is touched. A rank waits for the others' hosts there, which
             is why it is not asked in every step of a fast run. A lost peer is an error of the collective, at once
             where its connection breaks off.
stop         SIGUSR1 of the launcher, which sets a flag and nothing else. Before and after its training a rank leaves at
             once: that is the default of the signal. SIGTERM keeps its default all the time: torch's agent ends with it
             the siblings of a rank that has failed. torch's agent signals a rank's whole session. So the signal is
             blocked, which children inherit and survive by, and a thread waits for it; also while the main thread waits
             in a collective.
disk         One step of a checkpoint on every rank: all of them have done it, or all know that the volume is full.
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
"""From one question to the next: where units become slower, the next question is late by no more than these. Steps that
are faster than 16 ms are asked more often than once a second; a question takes some tenths of a millisecond."""


class Pace:
    """Of one kind of work, counted in the same units (steps, batches) on every rank.

    Args:
        done: units that are done already.
        every_s: wanted distance; less where one unit takes longer.
    """

    def __init__(self, done: int = 0, every_s: float = EVERY_S) -> None:
        self.asked = done
        """The unit behind which it was asked last."""
        self.due = done + 1
        """The unit behind which it is time to ask."""
        self._every_s = every_s

    @property
    def every(self) -> int:
        """Units from one question to the next."""
        return self.due - self.asked

    def set_back(self, done: int, unit_s: float) -> None:
        """After a question.

        Args:
            unit_s: how long a unit took on the slowest rank. At most twice as many units as before are waited for:
                the first ones of a run, and those beside an evaluation, say little of the next.
        """
        most = min(2 * self.every, MOST_UNITS)
        fitting = int(self._every_s / unit_s) if unit_s > 0 else most
        self.asked, self.due = done, done + max(1, min(fitting, most))


AGREEMENT_GROUP = "agreement"
"""Of the group: its axis, where traffic is told apart."""


class Agreement:
    """One per rank; every rank calls the same methods in the same order, but for the wishes.

    Args:
        timeout_s: after which a rank that does not answer is lost.
        from_step: the last step that need not be done again.
        every_s: between two questions, where steps are shorter.
    """

    def __init__(self, timeout_s: float, from_step: int = 0, every_s: float = EVERY_S) -> None:
        self._group = None
        if dist.get_world_size() > 1:
            timeout = timedelta(seconds=timeout_s)
            self._group = dist.new_group(timeout=timeout, backend="gloo", group_desc=AGREEMENT_GROUP)
        self.step = from_step
        """The last step that is done."""
        self.save_agreed = False
        """Whether somebody wanted a checkpoint when it was asked last; equal on every rank."""
        self._stop_wanted = False
        self._save_wanted = False
        self._steps = Pace(from_step, every_s)
        self._batches = Pace(0, every_s)
        self._batch = 0
        self._asked_at = time.monotonic()

    def want_stop(self) -> None:
        """This rank was told to stop. Sets a flag and nothing else: for a signal handler."""
        self._stop_wanted = True

    def want_save(self) -> None:
        """This rank wants a checkpoint; all of them see `save_agreed` behind one of the next steps."""
        self._save_wanted = True

    def end_step(self, step: int, recording: bool = False) -> None:
        """Behind a step: asks, if it is time to.

        Args:
            recording: short steps that are recorded are left alone.

        Raises:
            Stopped: on every rank behind the same step.
        """
        self.step = step
        self.save_agreed = False
        if step >= self._steps.due and not (recording and self._steps.every > 1):
            self._ask(self._steps, step)

    def end_batch(self) -> None:
        """Between the batches of an evaluation: as `end_step`."""
        self._batch += 1
        if self._batch >= self._batches.due:
            self._ask(self._batches, self._batch)

    def ask_now(self) -> None:
        """Before or after something long: as `end_step`, at once."""
        self._reduce(0.0)

    def _ask(self, pace: Pace, unit: int) -> None:
        taken_s = time.monotonic() - self._asked_at
        pace.set_back(unit, self._reduce(taken_s / (unit - pace.asked)))
        self._asked_at = time.monotonic()

    def _reduce(self, unit_s: float) -> float:
        """The longest `unit_s` over all ranks."""
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
        """Waits for the others before the process ends: none of them shall take it for lost."""
        if self._group is not None:
            dist.barrier(group=self._group)


STOP = signal.SIGUSR1


def listen(agreement: Agreement) -> None:
    """From here on a stop is agreed upon with the other ranks. In the main thread."""

    def wait() -> None:
        while True:
            signal.sigwait({STOP})
            agreement.want_stop()

    signal.signal(STOP, lambda number, frame: agreement.want_stop())  # by a thread that was there before
    signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})
    threading.Thread(target=wait, name="stop", daemon=True).start()


SLOW_VOLUME_S = 3600
DISK_GROUP = "disk"
"""Of the group: its axis, where traffic is told apart."""


def open_disk_group(timeout_s: int) -> Any:
    """The group in which ranks talk about files: on the hosts, so that none waits for a disk in a device's collective.

    Used at the start by the thread that trains, afterwards by the one that writes. Its time-out is at least an hour:
    volumes are slow, and a peer that is lost is noticed by its broken connection.
    """
    timeout = timedelta(seconds=max(timeout_s, SLOW_VOLUME_S))
    return dist.new_group(backend="gloo", timeout=timeout, group_desc=DISK_GROUP)


def run_together(action: Callable[[], Any], folder: Path, group: Any = None) -> list[Any]:
    """What `action` returned on every rank, in their order; also keeps them together, like a barrier.

    Args:
        folder: where it writes.
        group: of all ranks.

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
    """The failure's own last line, and how much room there is."""
    lines = str(failure).strip().splitlines() or [type(failure).__name__]
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**20
    return f"{lines[-1][:300]} ({free:.0f} MiB free in {folder})"
