"""A loss or a gradient that is not finite: in which step, of which rank, and what the run does about it.

The sum over the ranks tells every rank at the same write of the metrics. Only then they ask each other whose share it
was; a run whose losses are finite pays nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.failures import NotFinite

LONGEST_SKIP = 20
"""Steps in a row: by then the weights themselves are not finite, or no batch is of use."""
HELP = "lower TRAINER_LR or set TRAINER_CLIP_NORM"


class Step(NamedTuple):
    """What all ranks know of one step."""

    number: int
    loss: float
    """Over all ranks."""
    norm: float
    skipped: bool
    """The engine has left its update out."""


class Guard:
    """Decides for every rank alike.

    Args:
        policy: the setting on_not_finite.
        scales_loss: gradients that are not finite are then what a loss scale is found by, and no fault.
        place: the node of this rank.
    """

    def __init__(self, policy: str, scales_loss: bool, place: str) -> None:
        self._policy, self._scales_loss, self._place = policy, scales_loss, place
        self._in_a_row = 0
        self.found = 0
        """Steps of this attempt whose loss or gradient was not finite."""

    def counts_as_skipped(self, step: Step) -> bool:
        """Whether its update was left out, by the engine or by this policy."""
        return step.skipped or (self._policy == "skip" and not math.isfinite(step.norm))

    def forget(self) -> None:
        """All steps since the last call were finite, and none was left out."""
        self._in_a_row = 0

    def check(self, steps: Sequence[Step], shares: Sequence[Tensor]) -> list[tuple[int, str]]:
        """(step, sentence) of what is to be recorded, and counts it; collective where something is not finite.

        Args:
            shares: this rank's losses of these steps.

        Raises:
            NotFinite: on every rank, if the policy is to stop, or skipping does not help.
        """
        bad = [step for step in steps if self._is_bad(step)]
        for step in steps:
            self._in_a_row = self._in_a_row + 1 if self.counts_as_skipped(step) and self._is_bad(step) else 0
            if self._in_a_row > LONGEST_SKIP:
                raise NotFinite(
                    f"{LONGEST_SKIP} steps in a row were left out, the last one {step.number}; {HELP} "
                    "[SL-skips-in-a-row]"
                )
        if not bad:
            return []
        self.found += len(bad)
        sentence = self._describe(bad[0], self._find_owners(steps, shares))
        if self._policy == "stop":
            raise NotFinite(f"{sentence}; {HELP}")
        left_out = sum(self.counts_as_skipped(step) for step in bad)
        return [
            (bad[0].number, f"{sentence}; of these {len(steps)} steps {len(bad)} are so, {left_out} left out")
        ]

    def _is_bad(self, step: Step) -> bool:
        if not math.isfinite(step.loss):
            return True
        return not self._scales_loss and (step.skipped or not math.isfinite(step.norm))

    def _find_owners(self, steps: Sequence[Step], shares: Sequence[Tensor]) -> list[tuple[int, int, str]]:
        """(step, rank, place) of the earliest share of a loss that was not finite; of several ranks if at once."""
        finite = torch.stack(list(shares)).isfinite().tolist()
        first = next((step.number for step, good in zip(steps, finite, strict=True) if not good), None)
        answers: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(answers, (first, self._place))
        found = [(step, rank, place) for rank, (step, place) in enumerate(answers) if step is not None]
        return [owner for owner in found if owner[0] == min(found)[0]]

    def _describe(self, step: Step, owners: Sequence[tuple[int, int, str]]) -> str:
        if math.isfinite(step.loss):
            return f"the gradient of step {step.number} is not finite, on all ranks together [SL-gradient-not-finite]"
        said = f"the loss of step {step.number} is not finite"
        if not owners:
            return f"{said}: it overflows as a sum, of each rank it is finite [SL-loss-sum-overflows]"
        if len(owners) == dist.get_world_size() > 1:
            return (
                f"{said}, on all ranks at once: so are the weights, or the learning rate is too high "
                "[SL-loss-not-finite-anywhere]"
            )
        named = [f"rank {rank}" + (f" (node {place})" if place else "") for _, rank, place in owners[:4]]
        return f"{said}, first on {', '.join(named)} [SL-loss-not-finite]"
