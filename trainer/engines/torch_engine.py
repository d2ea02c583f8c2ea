"""The engine of every strategy made of plain PyTorch, and the pieces that others share with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.checkpoint import native_state
from trainer.checkpoint.sharded_snapshot import ShardedStaging
from trainer.data.batches import Batch
from trainer.engine import Snapshot, StepResult, add_up, as_sums, build_result
from trainer.engines.gradient_norm import whole_norm
from trainer.engines.optimizer import build_optimizer, step_optimizer
from trainer.measuring.observation import Observed, local_part, state_tensors
from trainer.measuring.phases import Phases
from trainer.models.loss_scale import LossScale
from trainer.run import Run


class TorchEngine:
    """Forward and backward per micro-batch, then one update.

    Args:
        forward: the learner as wrapped by the strategy.
        loss_factor: undoes the strategy's averaging of gradients, so that they become pure sums.
        apply_sync: tells the strategy whether the next backward pass completes the step.
        keeps_gradients: they become zero after the update, instead of none: what they lie in stays anyway.
    """

    def __init__(
        self,
        run: Run,
        forward: nn.Module,
        phases: Phases,
        *,
        loss_factor: float = 1.0,
        apply_sync: Callable[[bool], None] | None = None,
        keeps_gradients: bool = False,
    ) -> None:
        self.observed = Observed()
        self.module = forward
        self.settings: dict[str, Any] = {}
        self.loss_scale = LossScale(run.precision.scales_loss)
        self._clip_norm = run.config.clip_norm
        self._skips = run.config.on_not_finite == "skip"
        self._forward = forward
        self._phases = phases
        self._device_type = run.mesh.device_type
        self._loss_factor = loss_factor
        self._apply_sync = apply_sync
        self._keeps_gradients = keeps_gradients
        self._parameters = [p for p in forward.parameters() if p.requires_grad]
        self._optimizer = build_optimizer(run.config, self._parameters)
        self._staging = ShardedStaging()

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        phases, last = self._phases, len(batch.micro) - 1
        factor = self._loss_factor * self.loss_scale.scale
        total = counted = None
        for i, (inputs, labels) in enumerate(batch.micro):
            if self._apply_sync:
                self._apply_sync(i == last)
            with phases.forward:
                whole, measures = self._forward(inputs, labels)
                loss = whole / batch.global_labels
            with phases.backward:
                (loss * factor).backward()
            total, counted = add_up(total, loss.detach()), add_up(counted, measures)
        assert total is not None, "a batch without micro-batches"
        with phases.optimizer:
            norm, skipped = self._update(lr)
        return build_result(batch, total, counted, norm, skipped)

    def _update(self, lr: float) -> tuple[Tensor, int]:
        """Clips and applies the gradients; gives their norm, and 1 if they were left out."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = whole_norm(gradients, self._device_type)
        norm, skip = self.loss_scale.take_out((local_part(g) for g in gradients), norm)
        if "parameters" not in self.observed.dtypes:
            self.observed.add("parameters", self._forward.parameters())
            self.observed.add("gradients", gradients)
        if not skip:
            if self._clip_norm:
                torch.nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
            step_optimizer(self._optimizer, lr, norm, self._skips)
            if "optimizer" not in self.observed.dtypes:
                self.observed.add("optimizer", state_tensors(self._optimizer))
        self._optimizer.zero_grad(set_to_none=not self._keeps_gradients)
        return norm, int(skip)

    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self._forward.eval()
        with torch.no_grad():
            sums = as_sums(*self._forward(inputs, labels))
        self._forward.train()
        return sums

    def snapshot(self) -> Snapshot:
        return native_state.snapshot(self._staging, self._forward, self._optimizer, self.loss_scale)

    def load(self, folder: Path) -> None:
        # torch gives an optimizer its state, to be read into, only where no parameter has a gradient
        gradients = [p.grad for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        native_state.load(self._forward, self._optimizer, self.loss_scale, folder)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def gather_state(self) -> dict[str, Tensor]:
        return native_state.gather(self._forward)

    def close(self) -> None:
        """Nothing beyond what Python frees."""
