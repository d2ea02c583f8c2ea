"""The engine of the strategy nd: steps, evaluation and state of one rank's stages.

`ScheduleEngine` runs the pipeline's schedule. Every mesh writes the same names into a checkpoint, so that any mesh can
read it:

    rank 0  hf.model.layers.0 ...  ─┐                       ┌─  any other stages, shards, experts
    rank 1  hf.model.layers.18 ... ─┴─ one flat name space ─┴─  torch.distributed.checkpoint reshards when it reads

`build_stages` builds them in the order of trainer/parallel/__init__.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

from stratlab_spec.layout.nd_layout import count_stages
from stratlab_spec.memory.model_state import EMBEDDING, HEAD
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import accumulates_sharded
from trainer.checkpoint.state import StatePart, take_local
from trainer.data.batches import Batch
from trainer.distributed.world import gather_objects
from trainer.engine import as_sums
from trainer.engines.torch_engine import TorchEngine, apply_compile, build_optimizer
from trainer.measuring.held_tensors import local_part
from trainer.measuring.phases import Phases
from trainer.models.decoder import documents_of, restore_buffers
from trainer.models.weights import Weights
from trainer.parallel.context import apply_context, split_context
from trainer.parallel.expert import apply_experts
from trainer.parallel.fully_shard import apply_sharding, apply_sync
from trainer.parallel.meshes import Meshes
from trainer.parallel.pipeline import (
    LabelledStage,
    apply_stage,
    build_schedule,
    build_tied_group,
    layers_of,
    pass_through,
)
from trainer.parallel.tensor import apply_tensor
from trainer.run import Run


@dataclass
class Stage(StatePart):
    """A stage with its optimizer: the decoder without the parts of other stages, under their old names."""

    index: int
    stages: int
    """Number of stages of the whole pipeline."""

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1

    def stored_name(self, key: str) -> str:
        """Return the name in the checkpoint: a tied head is stored as the embedding.

        On a mesh with a single stage, head and embedding are one parameter.
        """
        embedding = f"hf.{self.module.embedding_name}.weight"
        return key.replace(HEAD, embedding) if self.is_last and self.module.shape.tied else key

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that get gradients, by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


def build_stages(run: Run, decoder: nn.Module, meshes: Meshes, weights: Weights) -> list[Stage]:
    """Build this rank's stages: one, or two with the interleaved schedule.

    Args:
        decoder: on the meta device, with adapters and activation checkpointing; stays unchanged.
    """
    config, layout, ranks = run.config, run.plan.layout, meshes.pp.size()
    assert layout is not None
    stages = count_stages(config, ranks)
    tp_group = meshes.tp.get_group() if meshes.tp.size() > 1 else None
    built = []
    for index in range(meshes.pp.get_local_rank(), stages, ranks):
        module = copy.deepcopy(decoder)
        apply_stage(module, index, stages)
        if index == stages - 1:
            module.loss.group = tp_group
        layers = list(layers_of(module).values())
        apply_context(module, layers, meshes.cp, config.cp_method)
        apply_tensor(module, meshes.tp, layout.sequence_parallel)
        apply_experts(layers, meshes.ep)
        if config.compile:
            apply_compile(layers, run.compile_backend)
        apply_sharding(module, layers, meshes.shard, config, run.precision, meshes.experts, meshes.pp.size())
        module.to_empty(device=meshes.device_type)
        restore_buffers(module, meshes.device_type)
        fill_parameters(module, weights)
        module.train()
        optimizer = build_stage_optimizer(config, module.parameters())
        built.append(Stage(module, optimizer, index, stages))
    return built


@torch.no_grad()
def fill_parameters(module: nn.Module, weights: Weights) -> None:
    """Load this rank's part of every parameter, one at a time.

    A tied head on a separate last stage loads the embedding.
    """
    known = set(weights.names)
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, DTensor), name
        source = EMBEDDING if name == HEAD and name not in known else name
        parameter.to_local().copy_(take_local(weights.tensor(source), parameter))


def build_stage_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """Build one optimizer with a parameter group per mesh, because its kernels take many parameters of one mesh."""
    by_mesh: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        assert isinstance(parameter, DTensor)
        if parameter.requires_grad:
            by_mesh.setdefault(parameter.device_mesh, []).append(parameter)
    first, *others = by_mesh.values()
    optimizer = build_optimizer(config, first)
    for group in others:
        optimizer.add_param_group({"params": group})
    return optimizer


class ScheduleEngine(TorchEngine):
    """Run one optimizer step over all micro-batches, by a schedule of the pipeline or sequentially.

    Args:
        stages: of this rank, in the order of the model.
    """

    def __init__(self, run: Run, stages: list[Stage], meshes: Meshes, phases: Phases) -> None:
        super().__init__(run, nn.ModuleList([stage.module for stage in stages]), phases, parts=stages)
        layout = run.plan.layout
        assert layout is not None
        self.stages = stages
        self.meshes = meshes
        self._pipeline = meshes.pp
        self._sequence_parallel = layout.sequence_parallel
        self._stream_dtype = run.precision.autocast_dtype or torch.float32
        self._counts_loss = stages[-1].is_last and meshes.tp.get_local_rank() == 0
        self._sharded = accumulates_sharded(run.config, meshes.pp.size())
        self._global_labels = 1
        self._schedule: Any = None
        self.tied = meshes.pp.size() > 1 and stages[0].module.shape.tied
        """Whether the first and the last stage hold the same embedding."""
        self._tied_group = build_tied_group(meshes.stage_peers) if self.tied else None

    def _accumulate(self, batch: Batch) -> tuple[Tensor, None]:
        if self.meshes.pp.size() > 1:
            return self._run_schedule(batch), None
        loss, _ = super()._accumulate(batch)
        return loss if self._counts_loss else torch.zeros_like(loss), None

    def _begin_micro_batch(self, index: int, completes_step: bool) -> None:
        apply_sync(self.stages[0].module, self._sharded, completes_step)

    def _forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, None]:
        ids, known = self._own_columns(inputs, labels)
        return self.stages[0].module(ids, **known), None

    def _run_schedule(self, batch: Batch) -> Tensor:
        self._global_labels = batch.global_labels
        if self._schedule is None:
            self._schedule = self._build_schedule(len(batch.micro), batch.micro[0][0].device)
        inputs, labels = (torch.cat(parts) for parts in zip(*batch.micro, strict=True))
        ids, known = self._own_columns(inputs, labels)
        given = (ids,) if self.stages[0].is_first else ()
        losses: list[Tensor] = []
        # labels are also the target: without a target torch's schedules skip the loss
        ending = {"target": known["labels"], "losses": losses} if self.stages[-1].is_last else {}
        self._schedule.step(*given, **known, **ending, return_outputs=False)
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
        """Return the ids of this cp rank's columns, and the inputs that every stage receives."""
        ids, positions = inputs.unbind(1)
        cp = self.meshes.cp
        known = {"positions": split_context(positions, cp), "labels": split_context(labels, cp)}
        if self.stages[-1].module.teacher:  # the teacher reads whole rows
            known["rows"] = inputs
        if self.stages[0].module.needs_packing:  # of the whole row: attention crosses cp ranks
            known["documents"] = documents_of(inputs)
        return split_context(ids, cp), known

    def _complete_gradients(self) -> tuple[list[Any], list[Any]]:
        twice = self._sum_tied()
        trained = [p for stage in self.stages for p in stage.trained().values()]
        assert all(p.grad is not None for p in trained), "a parameter without a gradient"
        return [p.grad for p in trained], [p.grad for p in trained if p is not twice]

    def _sum_tied(self) -> nn.Parameter | None:
        """Sum the embedding's gradients of the first and the last stage; return the last stage's copy."""
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

    def gather_state(self) -> dict[str, Tensor]:
        return gather(self.stages)


@torch.no_grad()
def gather(stages: list[Stage]) -> dict[str, Tensor]:
    """Gather the whole state by the names of the whole decoder, fp32, on rank 0's CPU; collective.

    Other ranks return an empty dict. It gathers one parameter at a time, so a device holds at most one whole parameter
    in addition to its own part. A tied head appears twice, as in the decoder's own state, and is one tensor.
    """
    rank = dist.get_rank()
    held = {key: value for stage in stages for key, value in get_model_state_dict(stage.module).items()}
    tied = stages[0].module.shape.tied
    if tied:
        held.pop(HEAD, None)
    sizes = gather_objects({name: tuple(value.shape) for name, value in held.items()})
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
        found[HEAD] = found[f"hf.{stages[0].module.embedding_name}.weight"]
    return found
