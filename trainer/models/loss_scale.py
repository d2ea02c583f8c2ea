"""The factor of a loss whose gradients are fp16, found while it trains (precision: fp16)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from trainer.failures import NotFinite


@dataclass
class LossScale:
    """Dynamic loss scaling with the rules and constants of torch.amp.GradScaler, from the global gradient norm.

    It has a floor, as DeepSpeed's (min_loss_scale 1) and unlike torch's: from 65536 the 17th step in a row that is
    skipped ends the run, which would skip all others as well.

    One object for every strategy: the norm is the same number on all ranks, so they skip and back off together.
    DeepSpeed's own scaler for autocast is not used: after a skipped step it never lowers its scale, and its norm
    stays scaled (deepspeed 0.19.8, stage_1_and_2.py and stage3.py, `torch_autocast_gradscaler`).
    """

    enabled: bool
    scale: float = field(default=2.0**16)
    good_steps: int = 0

    GROWTH = 2.0
    BACKOFF = 0.5
    INTERVAL = 2000
    FLOOR = 1.0
    """A lower scale would make gradients smaller than they are."""

    def __post_init__(self) -> None:
        if not self.enabled:
            self.scale = 1.0

    def update(self, skipped: bool) -> None:
        """After a step: halve after a skipped one, double after 2000 good ones.

        Raises:
            NotFinite: a step was skipped at the lowest scale.
        """
        if not self.enabled:
            return
        if skipped and self.scale <= self.FLOOR:
            raise NotFinite(
                f"gradients in fp16 are not finite at a loss scale of {self.FLOOR:g} either, the lowest: the model has "
                "diverged, or needs a wider range; lower TRAINER_LR, or take TRAINER_PRECISION=bf16 or fp32 "
                "[SL-loss-scale-floor]"
            )
        if skipped:
            self.scale, self.good_steps = self.scale * self.BACKOFF, 0
        elif self.good_steps + 1 == self.INTERVAL:
            self.scale, self.good_steps = self.scale * self.GROWTH, 0
        else:
            self.good_steps += 1

    def take_out(self, gradients: Iterable[torch.Tensor], norm: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Takes the scale out of gradients, in place, and of their norm, and adapts to it; (norm, whether the update
        must be left out). The host waits for the norm; without a scale nothing happens.

        Args:
            gradients: this rank's parts; not looked at without a scale.
            norm: of the whole scaled gradient, the same on every rank.
        """
        if not self.enabled:
            return norm, False
        norm = norm / self.scale
        torch._foreach_mul_(list(gradients), 1.0 / self.scale)
        skip = self.must_skip(float(norm))
        self.update(skip)
        return norm, skip

    def must_skip(self, norm: float) -> bool:
        """Whether an update with gradients of this norm must be left out."""
        return self.enabled and not math.isfinite(norm)

    def state(self) -> torch.Tensor:
        """What a checkpoint keeps: (scale, good steps) as float64."""
        return torch.tensor([self.scale, self.good_steps], dtype=torch.float64)

    def load(self, state: torch.Tensor) -> None:
        """The counterpart of `state`."""
        self.scale, self.good_steps = float(state[0]), int(state[1])
