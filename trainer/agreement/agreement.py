"""Each rank has wishes (to stop, to save), and all learn of them behind the same step.

Three numbers per rank and second, the greatest of each over all ranks, by a group on the CPUs beside the one that
trains: nothing waits for a device, no stream is touched. A rank waits for the others' hosts there, which is why it is
not asked in every step of a fast run. A peer that is lost is an error of the collective, at once where its connection
breaks off.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from trainer.agreement.pace import EVERY_S, Pace
from trainer.failures import Stopped

NAME = "agreement"
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
            self._group = dist.new_group(timeout=timeout, backend="gloo", group_desc=NAME)
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
