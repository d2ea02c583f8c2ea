"""fully_shard (FSDP2) as the innermost wrapping, always: also over one rank it casts parameters, and gives every
gradient the layout of its parameter. dp_shard and cp share out, dp_replicate repeats; experts have a mesh of their own.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainer.models.experts import Experts
from trainer.parallel.gathered_types import apply_gathered_types, build_mixed_precision
from trainer.parallel.pipeline import layers_of
from trainer.parallel.prefetch import apply_prefetch
from trainer.parallel.submeshes import Meshes
from trainer.settings.config import Config
from trainer.settings.knob_table import reshards_after_forward
from trainer.settings.precision import Precision


def apply_sharding(decoder: nn.Module, meshes: Meshes, config: Config, precision: Precision) -> None:
    """Shards a stage in place: experts, layers, and what is left with the root."""
    settings: dict[str, Any] = {"mp_policy": build_mixed_precision(precision, config.reduce_dtype)}
    of_layers = settings | {"reshard_after_forward": reshards_after_forward(config, meshes.pp.size())}
    blocks: list[list[Any]] = []
    for layer in layers_of(decoder).values():
        experts = getattr(layer.mlp, "experts", None)
        blocks.append([layer])
        if isinstance(experts, Experts):
            blocks[-1].insert(0, fully_shard(experts, mesh=meshes.experts, **of_layers))
        fully_shard(layer, mesh=meshes.shard, **of_layers)
    fully_shard(decoder, mesh=meshes.shard, reshard_after_forward=False, **settings)
    apply_prefetch(blocks, config.prefetch_blocks)
    apply_gathered_types(decoder, precision)
    apply_pure_sums(decoder)


def apply_pure_sums(model: nn.Module) -> None:
    """Gradients of what is sharded are summed, not averaged: the loss is divided by the whole step's labels already."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
