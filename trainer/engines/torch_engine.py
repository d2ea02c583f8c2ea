"""The engine of every strategy made of plain PyTorch, and the pieces that others share with it.

torch.compile block by block: what is done to every block alike, under every strategy.

What an optimizer is given, under its arguments' names of torch.optim: the one place that reads its settings.

The optimizer of every engine but DeepSpeed's.

How long a gradient is, over tensors that lie on one rank or in shards on many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stratlab_spec.registry import OPTIMIZERS, SHARED
from stratlab_spec.settings.config import Config
from trainer.checkpoint import state as native_state
from trainer.checkpoint.state import ShardedStaging
from trainer.data.batches import Batch
from trainer.engine import Snapshot, StepResult, add_up, as_sums, build_result
from trainer.measuring.held_tensors import Observed, local_part, state_tensors
from trainer.measuring.phases import Phases
from trainer.models.mixed_precision import LossScale
from trainer.run import Run


def apply_compile(blocks: Iterable[nn.Module], backend: str) -> None:
    """Each block by itself, in place: after activation checkpointing, before anything is sharded.

    Args:
        backend: of torch.compile.
    """
    for block in blocks:
        block.compile(backend=backend)


def optimizer_arguments(config: Config) -> dict[str, Any]:
    """Every argument that decides what an update is; how its kernels run is the engine's (fused, foreach)."""
    given: dict[str, Any] = {name: getattr(config, name) for name in SHARED}
    for argument, settings in OPTIMIZERS[config.optimizer].arguments.items():
        values = tuple(getattr(config, name) for name in settings)
        given[argument] = values if len(values) > 1 else values[0]
    return given


def step_optimizer(optimizer: Any, lr: float, norm: Tensor, skips: bool) -> None:
    """One update; where `skips` none if the norm of the whole gradient is not finite, so on all ranks alike.

    A fused optimizer looks at a number on the device, and the host never waits. It does for the others, and where
    parameters are kept elsewhere than the norm (offload).
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    if skips:
        first = optimizer.param_groups[0]["params"][0]
        if optimizer.defaults.get("fused") and first.device == norm.device:
            optimizer.found_inf = (~norm.isfinite()).float()
        elif not norm.isfinite():
            return
    optimizer.step()


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """AdamW or SGD with every argument that matters written out; one fused kernel instead of a loop in Python."""
    trainable = [p for p in parameters if p.requires_grad]
    arguments = optimizer_arguments(config)
    if config.optimizer == "sgd":
        # not fused: aten._fused_sgd_ has no rule for sharded tensors (torch 2.13)
        return torch.optim.SGD(trainable, **arguments, foreach=True)
    return torch.optim.AdamW(trainable, **arguments, fused=True)


ROW = 1 << 12
LONG = 1 << 18


def whole_norm(gradients: list[Tensor], device_type: str) -> Tensor:
    """Norm of the whole gradient, of which each rank may hold shards; equal on every rank.

    Made of the local shards: DTensor's own way costs the host a dispatch per parameter, and reduces on the CPU, which
    nccl does not see, where shards are kept in host memory (offload).
    """
    norm = total_norm([local_part(gradient) for gradient in gradients])
    first = gradients[0]
    if not isinstance(first, DTensor):
        return norm
    squared = norm.to(device_type).square()
    for axis, placement in enumerate(first.placements):
        if not placement.is_replicate():
            dist.all_reduce(squared, group=first.device_mesh.get_group(axis))
    return squared.sqrt()


def total_norm(parts: list[Tensor]) -> Tensor:
    """Norm of all parts together.

    On a CPU torch adds up the squares of a long tensor in fp32 one behind the other: of 100 million numbers the norm
    comes out 1.1 % too small (torch 2.13). There it is that of the norms of its rows.
    """
    return torch.nn.utils.get_total_norm(
        [_norms_of_rows(part) if part.numel() > LONG and part.is_cpu else part for part in parts]
    )


def _norms_of_rows(part: Tensor) -> Tensor:
    flat = part.reshape(-1)
    even = flat.numel() // ROW * ROW
    return torch.cat([torch.linalg.vector_norm(flat[:even].view(-1, ROW), dim=1), flat[even:]])


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
