"""Build one stage of the pipeline, in the order of trainer/parallel/__init__.py."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stratlab_spec.layout.parallel_dims import count_stages
from stratlab_spec.memory.model_state import EMBEDDING, HEAD
from stratlab_spec.settings.config import Config
from trainer.checkpoint.state import StatePart, take_local
from trainer.engines.torch_engine import apply_compile, build_optimizer
from trainer.models.decoder import restore_buffers
from trainer.models.weights import Weights
from trainer.parallel.context import apply_context
from trainer.parallel.expert import apply_experts
from trainer.parallel.fully_shard import apply_sharding
from trainer.parallel.pipeline import apply_stage, layers_of
from trainer.parallel.process_groups import Meshes
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
