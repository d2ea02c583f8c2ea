"""The engine of every strategy made of plain PyTorch, and what it shares with the other two.

StepEngine          forward and backward per micro-batch, then one update
  TorchEngine       single, ddp, fsdp, hsdp; torch's optimizer, torch.distributed.checkpoint
    ScheduleEngine  nd (trainer/parallel/nd_engine.py)
  DeepSpeedEngine   zero1, zero2, zero3, zeropp (zero_engine.py)
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
    """One optimizer step over all micro-batches of a batch; a subclass says how it computes and updates.

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
        """(loss, the learner's measures) of all micro-batches, whose gradients add up."""
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
        """Before each forward pass."""

    def _forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the learner gives: (sum of the labels' losses, its measures)."""
        found: tuple[Tensor, Tensor] = self.module(inputs, labels)
        return found

    def _backward(self, loss: Tensor) -> None:
        """Adds the gradients of `loss` to those that are there, scaled."""
        raise NotImplementedError

    def _update(self, lr: float) -> tuple[Tensor | float, int]:
        """Clips and applies the gradients; gives their norm before, and 1 if they were left out on all ranks."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing beyond what Python frees."""


class TorchEngine(StepEngine):
    """Every step is PyTorch's own.

    Args:
        loss_factor: undoes the strategy's averaging of gradients, so that they become pure sums.
        apply_sync: tells the strategy whether the next backward pass completes the step.
        keeps_gradients: they become zero after the update, instead of none: what they lie in stays anyway.
        parts: modules with their optimizers; left out, it is all one.
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
        """(all gradients of this rank, those that the norm counts here)."""
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
        # torch gives an optimizer its state, to be read into, only where no parameter has a gradient
        gradients = [p.grad for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        native_state.load(self._parts, self.loss_scale, folder)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def gather_state(self) -> dict[str, Tensor]:
        return native_state.gather(self.module)


def apply_compile(blocks: Iterable[nn.Module], backend: str) -> None:
    """Compiles each block by itself, in place: after activation checkpointing, before anything is sharded.

    Args:
        backend: of torch.compile.
    """
    for block in blocks:
        block.compile(backend=backend)


def optimizer_arguments(config: Config) -> dict[str, Any]:
    """Every argument that decides what an update is, named as torch.optim does; how its kernels run is the engine's."""
    given: dict[str, Any] = {name: getattr(config, name) for name in SHARED}
    for argument, settings in OPTIMIZERS[config.optimizer].arguments.items():
        values = tuple(getattr(config, name) for name in settings)
        given[argument] = values if len(values) > 1 else values[0]
    return given


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """AdamW or SGD with every argument that matters written out; one fused kernel instead of a loop in Python."""
    trainable = [p for p in parameters if p.requires_grad]
    arguments = optimizer_arguments(config)
    if config.optimizer == "sgd":
        # not fused: aten._fused_sgd_ has no rule for sharded tensors (torch 2.13)
        return torch.optim.SGD(trainable, **arguments, foreach=True)
    return torch.optim.AdamW(trainable, **arguments, fused=True)


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


@torch.no_grad()
def clip_gradients(gradients: list[Tensor], largest: float, norm: Tensor) -> None:
    """Scales in place, as torch's clip_grads_with_norm_ does, whatever meshes and devices the gradients are on."""
    parts = [local_part(gradient) for gradient in gradients]
    torch._foreach_mul_(parts, (largest / (norm + 1e-6)).clamp(max=1.0).to(parts[0].device))


ROW = 1 << 12
LONG = 1 << 18


@torch.no_grad()
def whole_norm(gradients: list[Tensor], device_type: str, pp: DeviceMesh | None = None) -> Tensor:
    """Norm of the whole gradient, of which each rank may hold shards; equal on every rank, collective.

    Made of the local shards, whose squares are added up over just those axes on which a gradient is in parts. torch's
    clip_grad_norm_ cannot mix meshes (torch 2.13). DTensor's own way costs the host a dispatch per parameter, and
    reduces on the CPU, which nccl does not see, where shards are kept in host memory (offload).

    Args:
        gradients: this rank's parts; of a parameter that two stages hold, one of them.
        pp: the axis of the pipeline, whose stages are added up.
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
    """Dims of its mesh over which ranks hold different parts.

    `is_replicate` and not `is_shard`: the latter is False for the strided shards of tp x fully_shard, and a norm built
    on it is up to a third too small.
    """
    sizes = gradient.device_mesh.shape
    return tuple(i for i, p in enumerate(gradient.placements) if sizes[i] > 1 and not p.is_replicate())


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
