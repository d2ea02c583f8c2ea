"""The engine of the strategy nd: steps, evaluation and state of the stages that one rank holds.

The norm of a gradient whose parts live on different meshes; torch's clip_grad_norm_ cannot mix them (torch 2.13).

State of the strategy nd: every mesh writes the same names, so that any mesh reads what another has written.

    rank 0  hf.model.layers.0 ...  ─┐                       ┌─  any other stages, shards, experts
    rank 1  hf.model.layers.18 ... ─┴─ one flat name space ─┴─  torch.distributed.checkpoint reshards when it reads

A tied head on a stage of its own is stored under the embedding's name: a mesh without that stage has no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stratlab_spec.memory.model_state import EMBEDDING, HEAD
from stratlab_spec.strategies import accumulates_sharded
from trainer.checkpoint.state import ShardedSnapshot, ShardedStaging, read_state
from trainer.data.batches import Batch
from trainer.engine import Snapshot, StepResult, as_sums, build_result
from trainer.engines.torch_engine import step_optimizer, total_norm
from trainer.measuring.held_tensors import Observed, local_part, state_tensors
from trainer.measuring.phases import Phases
from trainer.models.decoder import documents_of
from trainer.models.mixed_precision import LossScale
from trainer.parallel.context import split_context
from trainer.parallel.fully_shard import apply_sync
from trainer.parallel.pipeline import LabelledStage, build_schedule, build_tied_group, pass_through
from trainer.parallel.process_groups import Meshes
from trainer.parallel.stage import Stage
from trainer.run import Run


@torch.no_grad()
def measure_norm(gradients: Iterable[DTensor], pp: DeviceMesh) -> Tensor:
    """Norm of the whole gradient over all stages of the pipeline; equal on every rank, collective.

    The local sums of squares are added up over just those axes on which a gradient is in parts.

    Args:
        gradients: this rank's parts; of a parameter that two stages hold, one of them.
    """
    found: dict[tuple[DeviceMesh, tuple[int, ...]], list[Tensor]] = {}
    for gradient in gradients:
        key = gradient.device_mesh, split_dims(gradient)
        found.setdefault(key, []).append(local_part(gradient))
    total = torch.zeros((), device=pp.device_type)
    for (mesh, dims), parts in found.items():
        squared = total_norm(parts).float().square().to(total.device)
        for dim in dims:
            dist.all_reduce(squared, group=mesh.get_group(dim))
        total += squared
    if pp.size() > 1:
        dist.all_reduce(total, group=pp.get_group())
    return total.sqrt()


def split_dims(gradient: DTensor) -> tuple[int, ...]:
    """Dims of its mesh over which ranks hold different parts.

    `is_replicate` and not `is_shard`: the latter is False for the strided shards of tp x fully_shard, and a norm built
    on it is up to a third too small.
    """
    mesh = gradient.device_mesh
    return tuple(
        dim
        for dim, placement in enumerate(gradient.placements)
        if mesh.size(dim) > 1 and not placement.is_replicate()
    )


@torch.no_grad()
def clip_gradients(gradients: list[DTensor], largest: float, norm: Tensor) -> None:
    """Scales in place, as torch's clip_grads_with_norm_ does, whatever meshes the gradients are on."""
    torch._foreach_mul_([local_part(g) for g in gradients], (largest / (norm + 1e-6)).clamp(max=1.0))


# flat: an optimizer's entries are named after its parameters, whatever stage or group they are in
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class HasStages(Protocol):
    """What of an engine is saved."""

    stages: list[Stage]
    loss_scale: LossScale


def snapshot(staging: ShardedStaging, engine: HasStages) -> ShardedSnapshot:
    """A copy of this rank's part; collective."""
    return staging.take(_whole_state(engine))


def load(engine: HasStages, folder: Path) -> None:
    """Reads what a snapshot wrote on any mesh with any number of ranks, or what another strategy did; collective.

    Optimizers that have not stepped yet get their state first (torch steps them with learning rate and gradients 0):
    what does not exist would not be asked for.
    """
    state = _whole_state(engine)
    read_state(state, folder)
    for stage in engine.stages:
        model, optimizer = _stage_state(stage)
        set_model_state_dict(stage.module, {key: state["model"][_stored(stage, key)] for key in model})
        found = {key: state["optimizer"][_stored(stage, key)] for key in optimizer}
        set_optimizer_state_dict(stage.module, stage.optimizer, found, options=_FLAT)
    engine.loss_scale.load(state["loss_scale"])


def _whole_state(engine: HasStages) -> dict[str, Any]:
    models: dict[str, Any] = {}
    optimizers: dict[str, Any] = {}
    for stage in engine.stages:
        model, optimizer = _stage_state(stage)
        models |= {_stored(stage, key): value for key, value in model.items()}
        optimizers |= {_stored(stage, key): value for key, value in optimizer.items()}
    return {"model": models, "optimizer": optimizers, "loss_scale": engine.loss_scale.state()}


def _stage_state(stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    model = get_model_state_dict(stage.module)
    return model, get_optimizer_state_dict(stage.module, stage.optimizer, options=_FLAT)


def _stored(stage: Stage, key: str) -> str:
    """The name in the checkpoint; keys of an optimizer hold a parameter's name between other words."""
    return key.replace(HEAD, EMBEDDING) if stage.is_last and stage.module.shape.tied else key


@torch.no_grad()
def gather(engine: HasStages) -> dict[str, Tensor]:
    """The whole state by the names of the whole decoder, fp32, on rank 0's CPU; empty elsewhere; collective.

    One parameter at a time: no device holds more than one that is whole, beside what it has. A tied head is there
    twice, as in the decoder's own state, and is one tensor.
    """
    rank = dist.get_rank()
    held = {
        key: value for stage in engine.stages for key, value in get_model_state_dict(stage.module).items()
    }
    tied = engine.stages[0].module.shape.tied
    if tied:
        held.pop(HEAD, None)
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, {name: tuple(value.shape) for name, value in held.items()})
    device = next(iter(held.values())).device
    found: dict[str, Tensor] = {}
    for name in sorted(set().union(*sizes)):
        owner = next(r for r, names in enumerate(sizes) if name in names)
        if name in held:
            value = held[name]
            whole = (value.full_tensor() if isinstance(value, DTensor) else value).float()
        elif rank == 0:
            whole = torch.empty(sizes[owner][name], device=device)
        else:
            continue
        if owner and rank == owner:
            dist.send(whole.contiguous(), dst=0)
        if rank == 0:
            if owner:
                dist.recv(whole, src=owner)
            found[name] = whole.cpu() if whole.device.type != "cpu" else whole.detach().clone()
    if tied and rank == 0:
        found[HEAD] = found[EMBEDDING]
    return found


class ScheduleEngine:
    """One optimizer step over all micro-batches: a schedule of the pipeline, or one after the other without one.

    Args:
        stages: of this rank, in the order of the model.
    """

    def __init__(
        self,
        run: Run,
        stages: list[Stage],
        meshes: Meshes,
        phases: Phases,
    ) -> None:
        self.observed = Observed()
        self.stages = stages
        self.optimizers = [stage.optimizer for stage in stages]
        self.module: nn.Module = nn.ModuleList([stage.module for stage in stages])
        self.settings: dict[str, Any] = {}
        self.loss_scale = LossScale(run.precision.scales_loss)
        self.meshes = meshes
        self._staging = ShardedStaging()
        self._config = run.config
        self._phases = phases
        layout = run.placement.layout
        assert layout is not None
        self._sequence_parallel = layout.sequence_parallel
        self._stream_dtype = run.precision.autocast_dtype or torch.float32
        self._counts_loss = stages[-1].is_last and meshes.tp.get_local_rank() == 0
        self._sharded = accumulates_sharded(run.config, meshes.pp.size())
        self._global_labels = 1
        self._schedule: Any = None
        decoder = stages[0].module
        self.tied = meshes.pp.size() > 1 and decoder.shape.tied
        """Whether first and last stage hold the same embedding."""
        self._tied_group = build_tied_group(meshes.stage_peers) if self.tied else None

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        self._global_labels = batch.global_labels
        has_pipeline = self.meshes.pp.size() > 1
        loss = self._run_schedule(batch) if has_pipeline else self._accumulate(batch)
        with self._phases.optimizer:
            norm, skipped = self._update(lr)
        return build_result(batch, loss, None, norm, skipped)

    def _accumulate(self, batch: Batch) -> Tensor:
        phases, stage = self._phases, self.stages[0]
        total = torch.zeros((), device=self.meshes.device_type)
        for i, (inputs, labels) in enumerate(batch.micro):
            apply_sync(stage.module, self._sharded, i == len(batch.micro) - 1)
            with phases.forward:
                ids, known = self._own_columns(inputs, labels)
                loss = stage.module(ids, **known) / batch.global_labels
            with phases.backward:
                (loss * self.loss_scale.scale).backward()
            total += loss.detach()
        return total if self._counts_loss else torch.zeros_like(total)

    def _run_schedule(self, batch: Batch) -> Tensor:
        if self._schedule is None:
            self._schedule = self._build_schedule(len(batch.micro), batch.micro[0][0].device)
        inputs, labels = (torch.cat(parts) for parts in zip(*batch.micro, strict=True))
        ids, known = self._own_columns(inputs, labels)
        given = (ids,) if self.stages[0].is_first else ()
        losses: list[Tensor] = []
        if self.stages[-1].is_last:
            # as target again: without one torch's schedules compute no loss
            self._schedule.step(*given, **known, target=known["labels"], losses=losses, return_outputs=False)
        else:
            self._schedule.step(*given, **known, return_outputs=False)
        if not self._counts_loss:
            return torch.zeros((), device=self.meshes.device_type)
        return torch.stack([loss.detach() for loss in losses]).sum() / self.loss_scale.scale

    def _build_schedule(self, micro_batches: int, device: torch.device) -> Any:
        group = self.meshes.pp.get_group()
        stages = [
            LabelledStage(self._phases, s.module, s.index, s.stages, device, group=group) for s in self.stages
        ]

        def share(loss: Tensor, _: Tensor) -> Tensor:
            return loss / self._global_labels * self.loss_scale.scale

        return build_schedule(self._config.pp_schedule, stages, micro_batches, share)

    def _own_columns(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Ids of this cp rank's columns, and what every stage knows about them."""
        ids, positions = inputs.unbind(1)
        known = {
            name: split_context(of, self.meshes.cp)
            for name, of in (("positions", positions), ("labels", labels))
        }
        if self.stages[-1].module.teacher:  # which reads what this rank has only a part of
            known["rows"] = inputs
        if self.stages[0].module.needs_packing:  # of the whole row: attention crosses the cp ranks' borders
            known["documents"] = documents_of(inputs)
        return split_context(ids, self.meshes.cp), known

    def _update(self, lr: float) -> tuple[Tensor, int]:
        """Completes, measures, clips and applies the gradients; gives their norm before clipping, and 1 if they were
        left out: by every rank, for the norm is that of all stages."""
        twice = self._sum_tied()
        gradients: list[Any] = []
        counted: list[Any] = []
        for stage in self.stages:
            for parameter in stage.trained().values():
                assert parameter.grad is not None, "a parameter without a gradient"
                gradients.append(parameter.grad)
                if parameter is not twice:
                    counted.append(parameter.grad)
        norm = measure_norm(counted, self.meshes.pp)
        norm, skip = self.loss_scale.take_out((local_part(g) for g in gradients), norm)
        if "parameters" not in self.observed.dtypes:
            self.observed.add("parameters", self.module.parameters())
            self.observed.add("gradients", gradients)
        if not skip:
            if self._config.clip_norm:
                clip_gradients(gradients, self._config.clip_norm, norm)
            self._step(lr, norm)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return norm, int(skip)

    def _step(self, lr: float, norm: Tensor) -> None:
        for optimizer in self.optimizers:
            step_optimizer(optimizer, lr, norm, self._config.on_not_finite == "skip")
        if "optimizer" not in self.observed.dtypes:
            self.observed.add("optimizer", [t for o in self.optimizers for t in state_tensors(o)])

    def _sum_tied(self) -> nn.Parameter | None:
        """Adds up the gradients of the embedding on the first and the last stage; gives the last one's copy."""
        if not self.tied:
            return None
        copy = None
        for stage in self.stages:
            weight = stage.trained().get(EMBEDDING if stage.is_first else HEAD)
            if weight is None:
                continue
            dist.all_reduce(local_part(weight.grad), group=self._tied_group)
            copy = weight if stage.is_last else copy
        return copy

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.module.eval()
        ids, known = self._own_columns(inputs, labels)
        shape = self.stages[0].module.shape
        columns = ids.shape[1] // (self.meshes.tp.size() if self._sequence_parallel else 1)
        stream = torch.empty((len(ids), columns, shape.hidden), dtype=self._stream_dtype, device=ids.device)
        modules = {stage.index: stage.module for stage in self.stages}
        loss = pass_through(modules, self.stages[0].stages, ids, stream, self.meshes.pp, **known)
        sums = torch.zeros(2, dtype=torch.float64, device=ids.device)
        if loss is not None and self._counts_loss:
            sums = as_sums(loss, self.stages[-1].module.loss.measure(known["labels"]))
        self.module.train()
        return sums

    def snapshot(self) -> Snapshot:
        return snapshot(self._staging, self)

    def load(self, folder: Path) -> None:
        load(self, folder)

    def gather_state(self) -> dict[str, Tensor]:
        return gather(self)

    def close(self) -> None:
        """Nothing beyond what Python frees."""
