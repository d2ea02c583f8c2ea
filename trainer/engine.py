"""The contract between the loop and the strategies, and the engine of every strategy made of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer import native_state
from trainer.config import Config
from trainer.data.batches import IGNORED, Batch
from trainer.observation import Observed, local_part, state_tensors
from trainer.phases import Phases
from trainer.precision import LossScale, Precision


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step as one rank sees it. Tensors stay on the device: the loop must not wait for them."""

    loss: Tensor
    """This rank's share: sum of its labels' losses / labels of all ranks. The shares add up to the mean."""
    grad_norm: Tensor | float
    """Norm of the whole gradient, before clipping, equal on every rank."""
    samples: int
    """Samples of the step, over all ranks."""
    skipped: int = 0
    """1 if the engine left the update out (gradients that are not finite)."""
    tokens: int = 0
    """Of text: places in all rows of the step, padding included."""
    useful_tokens: int = 0
    """Of text: those that hold a document."""
    correct: Tensor | None = None
    """Of images: how many of this rank's samples were told right, before the update."""


class Engine(Protocol):
    """A model under a strategy. A wider contract would leak how DeepSpeed or a pipeline works."""

    observed: Observed
    """Element types and bytes, known after the first step."""
    module: nn.Module
    """The model inside, as the strategy left it: whole, wrapped or sharded."""
    settings: dict[str, Any]
    """What a library behind the engine was configured with (DeepSpeed); empty for plain PyTorch."""

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        """All micro-batches and one update with learning rate `lr`."""

    def evaluate(self, images: Tensor) -> Tensor:
        """Logits [batch, class] without gradients; every rank must call it equally often."""

    def evaluate_tokens(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Text: (sum of the losses, labels that count) float64 [2] without gradients; collective.

        Where ranks share rows (tp, cp, pp) each label is counted by one of them, so that a sum over all is right.
        """

    def save(self, folder: Path) -> None:
        """Writes model, optimizer and scaler into the empty `folder`; collective."""

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote, with the same world size or another one that the strategy can reshard; collective.

        Raises:
            ConfigError: with the command that helps, where this world size cannot be loaded.
        """

    def gather_state(self) -> dict[str, Tensor]:
        """The whole model's state on rank 0, on the CPU; empty elsewhere; collective."""

    def close(self) -> None:
        """Releases what the strategy holds."""


def sample_loss(logits: Tensor, labels: Tensor, global_labels: int, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of these labels as a share of the mean over the global batch.

    Args:
        logits: [..., class].
        labels: int64 [...], IGNORED where there is none, or the shares of all classes [batch, class] (mixup).
    """
    if labels.dtype == torch.int64:
        logits, labels = logits.flatten(0, -2), labels.flatten()
    whole = F.cross_entropy(
        logits.float(), labels, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORED
    )
    return whole / global_labels


def count_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """(sum of the losses, labels that count), float64 [2]; what `Engine.evaluate_tokens` gives."""
    count = (labels != IGNORED).sum()
    return torch.stack([sample_loss(logits, labels, 1).double(), count.double()])


def count_correct(logits: Tensor, labels: Tensor) -> Tensor | None:
    """How many of the images are told right, with mixup by the larger share; None for text, whose vocabulary makes
    that dear.

    Args:
        logits: [batch, class], or of text [batch, token, class].
        labels: int64 [batch], or the shares of all classes [batch, class].
    """
    if logits.dim() != 2:
        return None
    wanted = labels if labels.dtype == torch.int64 else labels.argmax(1)
    return (logits.detach().argmax(1) == wanted).sum()


def add_up(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    """A sum over micro-batches that stays on the device; None where there is nothing to add."""
    return more if total is None or more is None else total + more


def build_result(
    batch: Batch, loss: Tensor, grad_norm: Tensor | float, skipped: int, correct: Tensor | None = None
) -> StepResult:
    """What a step gives back to the loop."""
    tokens = (batch.tokens, batch.useful_tokens)
    return StepResult(loss, grad_norm, batch.global_samples, skipped, *tokens, correct)


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """AdamW or SGD with every argument that matters written out; one fused kernel instead of a loop in Python."""
    trainable = [p for p in parameters if p.requires_grad]
    if config.optimizer == "sgd":
        # not fused: aten._fused_sgd_ has no rule for sharded tensors (torch 2.13)
        return torch.optim.SGD(trainable, config.lr, weight_decay=config.weight_decay, foreach=True)
    return torch.optim.AdamW(
        trainable, config.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=config.weight_decay, fused=True
    )


def apply_compile(model: nn.Module, backend: str = "inductor") -> None:
    """torch.compile for each block, in place: after gradient checkpointing, before anything is sharded."""
    for block in model.blocks():  # type: ignore[operator]
        block.compile(backend=backend)


class TorchEngine:
    """Forward and backward per micro-batch, then one update.

    Args:
        forward: the model as wrapped by the strategy.
        loss_factor: undoes the strategy's averaging of gradients, so that they become pure sums.
        apply_sync: tells the strategy whether the next backward pass completes the step.
    """

    def __init__(
        self,
        config: Config,
        forward: nn.Module,
        phases: Phases,
        precision: Precision,
        device_type: str,
        *,
        loss_factor: float = 1.0,
        apply_sync: Callable[[bool], None] | None = None,
    ) -> None:
        self.observed = Observed()
        self.module = forward
        self.settings: dict[str, Any] = {}
        self.loss_scale = LossScale(precision.scales_loss)
        self._config = config
        self._autocast_dtype = precision.autocast_dtype
        self._forward = forward
        self._phases = phases
        self._device_type = device_type
        self._loss_factor = loss_factor
        self._apply_sync = apply_sync
        self._parameters = [p for p in forward.parameters() if p.requires_grad]
        self._optimizer = build_optimizer(config, self._parameters)

    def _autocast(self) -> Any:
        dtype = self._autocast_dtype
        return torch.autocast(self._device_type, dtype=dtype, enabled=dtype is not None)

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        phases, last = self._phases, len(batch.micro) - 1
        factor = self._loss_factor * self.loss_scale.scale
        total = correct = None
        for i, (images, labels) in enumerate(batch.micro):
            if self._apply_sync:
                self._apply_sync(i == last)
            with phases.forward:
                with self._autocast():
                    logits = self._forward(images)
                loss = sample_loss(logits, labels, batch.global_labels, self._config.label_smoothing)
            with phases.backward:
                (loss * factor).backward()
            total = add_up(total, loss.detach())
            correct = add_up(correct, count_correct(logits, labels))
        assert total is not None, "a batch without micro-batches"
        with phases.optimizer:
            norm, skipped = self._update(lr)
        return build_result(batch, total, norm, skipped, correct)

    def _update(self, lr: float) -> tuple[Tensor, int]:
        """Clips and applies the gradients; gives their norm, and 1 if they were left out."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = whole_norm(gradients, self._device_type)
        skip = False
        if self.loss_scale.enabled:
            norm = norm / self.loss_scale.scale
            torch._foreach_mul_([local_part(g) for g in gradients], 1.0 / self.loss_scale.scale)
            skip = self.loss_scale.must_skip(float(norm))
            self.loss_scale.update(skip)
        if "parameters" not in self.observed.dtypes:
            self.observed.add("parameters", self._forward.parameters())
            self.observed.add("gradients", gradients)
        if not skip:
            if self._config.clip_norm:
                torch.nn.utils.clip_grads_with_norm_(self._parameters, self._config.clip_norm, norm)
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            if "optimizer" not in self.observed.dtypes:
                self.observed.add("optimizer", state_tensors(self._optimizer))
        self._optimizer.zero_grad(set_to_none=True)
        return norm, int(skip)

    def evaluate(self, images: Tensor) -> Tensor:
        self._forward.eval()
        with torch.no_grad(), self._autocast():
            logits = self._forward(images)
        self._forward.train()
        return logits

    def evaluate_tokens(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return count_token_loss(self.evaluate(inputs), labels)

    def save(self, folder: Path) -> None:
        native_state.save(self._forward, self._optimizer, self.loss_scale, folder)

    def load(self, folder: Path) -> None:
        native_state.load(self._forward, self._optimizer, self.loss_scale, folder)

    def gather_state(self) -> dict[str, Tensor]:
        return native_state.gather(self._forward)

    def close(self) -> None:
        """Nothing beyond what Python frees."""


def whole_norm(gradients: list[Tensor], device_type: str) -> Tensor:
    """Norm of the whole gradient, of which each rank may hold shards; equal on every rank.

    Made of the local shards: DTensor's own way costs the host a dispatch per parameter, and reduces on the CPU, which
    nccl does not see, where shards are kept in host memory (offload).
    """
    norm = torch.nn.utils.get_total_norm([local_part(gradient) for gradient in gradients])
    first = gradients[0]
    if not isinstance(first, DTensor):
        return norm
    squared = norm.to(device_type).square()
    for axis, placement in enumerate(first.placements):
        if not placement.is_replicate():
            dist.all_reduce(squared, group=first.device_mesh.get_group(axis))
    return squared.sqrt()
