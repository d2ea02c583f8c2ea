"""The engine of every plain PyTorch strategy, and its base class for the other two engines.

StepEngine          forward and backward per micro-batch, then one update
  TorchEngine       single, ddp, fsdp, hsdp; torch's optimizer, torch.distributed.checkpoint
    ScheduleEngine  nd (trainer/parallel/nd_engine.py)
  DeepSpeedEngine   zero1, zero2, zero3, zeropp (trainer/strategies/zero.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stratlab_spec.registry import OPTIMIZERS, SHARED
from stratlab_spec.settings.config import Config
from trainer.checkpoint import state as native_state
from trainer.checkpoint.state import ShardedStaging, StatePart
from trainer.data.batches import Batch
from trainer.engine import Snapshot, StepResult, add_up, as_sums, build_result
from trainer.measuring.held_tensors import Observed, local_part, state_tensors
from trainer.measuring.phases import Phases
from trainer.models.mixed_precision import LossScale
from trainer.run import Run


class StepEngine:
    """Run one optimizer step over all micro-batches of a batch; subclasses compute and update.

    Args:
        module: the learner as wrapped by the strategy.
    """

    def __init__(self, run: Run, module: nn.Module, phases: Phases) -> None:
        self.observed = Observed()
        self.module = module
        self.settings: dict[str, Any] = {}
        self.loss_scale = LossScale(run.precision.scales_loss)
        self._config = run.config
        self._phases = phases

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        loss, measures = self._accumulate(batch)
        with self._phases.optimizer:
            norm, skipped = self._update(lr)
        return build_result(batch, loss, measures, norm, skipped)

    def _accumulate(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return (loss, the learner's measures) over all micro-batches; their gradients accumulate."""
        phases, last = self._phases, len(batch.micro) - 1
        total = counted = None
        for i, (inputs, labels) in enumerate(batch.micro):
            self._begin_micro_batch(i, i == last)
            with phases.forward:
                whole, measures = self._forward(inputs, labels)
                loss = whole / batch.global_labels
            with phases.backward:
                self._backward(loss)
            total, counted = add_up(total, loss.detach()), add_up(counted, measures)
        assert total is not None, "a batch without micro-batches"
        return total, counted

    def _begin_micro_batch(self, index: int, completes_step: bool) -> None:
        """Prepare each forward pass."""

    def _forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the learner's (sum of the labels' losses, its measures)."""
        found: tuple[Tensor, Tensor] = self.module(inputs, labels)
        return found

    def _backward(self, loss: Tensor) -> None:
        """Add the scaled gradients of `loss` to the accumulated ones."""
        raise NotImplementedError

    def _update(self, lr: float) -> tuple[Tensor | float, int]:
        """Clip and apply the gradients; return (norm before clipping, 1 if all ranks skipped the update)."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: Python frees all resources."""


class TorchEngine(StepEngine):
    """Run steps entirely with PyTorch.

    Args:
        loss_factor: reverses the strategy's averaging of gradients, so that they become pure sums.
        apply_sync: sets whether the next backward pass completes the step.
        keeps_gradients: set gradients to zero after the update instead of None, because their memory stays allocated.
        parts: modules with their optimizers; by default the whole module with one optimizer.
    """

    def __init__(
        self,
        run: Run,
        module: nn.Module,
        phases: Phases,
        *,
        loss_factor: float = 1.0,
        apply_sync: Callable[[bool], None] | None = None,
        keeps_gradients: bool = False,
        parts: list[Any] | None = None,
    ) -> None:
        super().__init__(run, module, phases)
        self._loss_factor = loss_factor
        self._apply_sync = apply_sync
        self._keeps_gradients = keeps_gradients
        self._parts = parts or [StatePart(module, build_optimizer(run.config, module.parameters()))]
        self.optimizers = [part.optimizer for part in self._parts]
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._device_type = run.mesh.device_type
        self._pipeline: DeviceMesh | None = None
        self._staging = ShardedStaging()

    def _begin_micro_batch(self, index: int, completes_step: bool) -> None:
        if self._apply_sync:
            self._apply_sync(completes_step)

    def _backward(self, loss: Tensor) -> None:
        (loss * (self._loss_factor * self.loss_scale.scale)).backward()

    def _complete_gradients(self) -> tuple[list[Any], list[Any]]:
        """Return (all gradients of this rank, the gradients that the norm counts on this rank)."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return gradients, gradients

    def _update(self, lr: float) -> tuple[Tensor, int]:
        gradients, counted = self._complete_gradients()
        norm = whole_norm(counted, self._device_type, self._pipeline)
        norm, skip = self.loss_scale.take_out((local_part(g) for g in gradients), norm)
        if "parameters" not in self.observed.dtypes:
            self.observed.add("parameters", self.module.parameters())
            self.observed.add("gradients", gradients)
        if not skip:
            if self._config.clip_norm:
                clip_gradients(gradients, self._config.clip_norm, norm)
            for optimizer in self.optimizers:
                step_optimizer(optimizer, lr, norm, self._config.on_not_finite == "skip")
            if "optimizer" not in self.observed.dtypes:
                self.observed.add("optimizer", [t for o in self.optimizers for t in state_tensors(o)])
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=not self._keeps_gradients)
        return norm, int(skip)

    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.module.eval()
        with torch.no_grad():
            sums = as_sums(*self.module(inputs, labels))
        self.module.train()
        return sums

    def snapshot(self) -> Snapshot:
        return self._staging.take(native_state.collect(self._parts, self.loss_scale))

    def load(self, folder: Path) -> None:
        # torch creates an optimizer's state for loading only if gradients are unset
        gradients = [p.grad for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        native_state.load(self._parts, self.loss_scale, folder)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def gather_state(self) -> dict[str, Tensor]:
        return native_state.gather(self.module)


def apply_compile(blocks: Iterable[nn.Module], backend: str) -> None:
    """Compile each block separately, in place: after activation checkpointing, before sharding.

    Args:
        backend: of torch.compile.
    """
    for block in blocks:
        block.compile(backend=backend)


def optimizer_arguments(config: Config) -> dict[str, Any]:
    """Return every argument that affects an update, by torch.optim's names; each engine chooses its kernels."""
    given: dict[str, Any] = {name: getattr(config, name) for name in SHARED}
    for argument, settings in OPTIMIZERS[config.optimizer].arguments.items():
        values = tuple(getattr(config, name) for name in settings)
        given[argument] = values if len(values) > 1 else values[0]
    return given


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """Build AdamW or SGD with every argument that matters; one fused kernel instead of a loop in Python."""
    trainable = [p for p in parameters if p.requires_grad]
    arguments = optimizer_arguments(config)
    if config.optimizer == "sgd":
        # not fused: aten._fused_sgd_ lacks a rule for sharded tensors (torch 2.13)
        return torch.optim.SGD(trainable, **arguments, foreach=True)
    return torch.optim.AdamW(trainable, **arguments, fused=True)


def step_optimizer(optimizer: Any, lr: float, norm: Tensor, skips: bool) -> None:
    """Update once; with `skips`, all ranks skip the update if the norm of the whole gradient is not finite.

    A fused optimizer reads a number on the device, so the host never waits. The host waits for other optimizers, and if
    parameters and norm are on different devices (offload).
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


@torch.no_grad()
def clip_gradients(gradients: list[Tensor], largest: float, norm: Tensor) -> None:
    """Scale in place like torch's clip_grads_with_norm_, for gradients on any mix of meshes and devices."""
    parts = [local_part(gradient) for gradient in gradients]
    torch._foreach_mul_(parts, (largest / (norm + 1e-6)).clamp(max=1.0).to(parts[0].device))


ROW = 1 << 12
LONG = 1 << 18


@torch.no_grad()
def whole_norm(gradients: list[Tensor], device_type: str, pp: DeviceMesh | None = None) -> Tensor:
    """Return the norm of the whole gradient, equal on every rank; collective.

    Each rank may hold shards. The function squares the local shards and adds them up only over the axes that split a
    gradient. torch's clip_grad_norm_ cannot mix meshes (torch 2.13). DTensor's own way needs a dispatch per parameter
    on the host. With shards in host memory (offload) it also reduces on the CPU, which nccl cannot access.

    Args:
        gradients: this rank's parts; a parameter on two stages counts once.
        pp: the axis of the pipeline; its stages are added up.
    """
    if not isinstance(gradients[0], DTensor):
        return total_norm(gradients)
    by_layout: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        assert isinstance(gradient, DTensor)
        layout = gradient.device_mesh, split_dims(gradient)
        by_layout.setdefault(layout, []).append(local_part(gradient))
    total = torch.zeros((), device=device_type)
    for (mesh, dims), parts in by_layout.items():
        squared = total_norm(parts).to(device_type, torch.float32).square()
        for dim in dims:
            dist.all_reduce(squared, group=mesh.get_group(dim))
        total += squared
    if pp is not None and pp.size() > 1:
        dist.all_reduce(total, group=pp.get_group())
    return total.sqrt()


def split_dims(gradient: DTensor) -> tuple[int, ...]:
    """Return the mesh dims over which ranks hold different parts.

    It tests `is_replicate` and not `is_shard`: `is_shard` is False for the strided shards of tp x fully_shard, and a
    norm based on it is up to a third too small.
    """
    sizes = gradient.device_mesh.shape
    return tuple(i for i, p in enumerate(gradient.placements) if sizes[i] > 1 and not p.is_replicate())


def total_norm(parts: list[Tensor]) -> Tensor:
    """Return the norm of all parts together.

    On a CPU torch adds up the squares of a long tensor sequentially in fp32. The norm of 100 million numbers is then
    1.1 % too small (torch 2.13). So on the CPU this takes the norm of the rows' norms.
    """
    return torch.nn.utils.get_total_norm(
        [_norms_of_rows(part) if part.numel() > LONG and part.is_cpu else part for part in parts]
    )


def _norms_of_rows(part: Tensor) -> Tensor:
    flat = part.reshape(-1)
    even = flat.numel() // ROW * ROW
    return torch.cat([torch.linalg.vector_norm(flat[:even].view(-1, ROW), dim=1), flat[even:]])
