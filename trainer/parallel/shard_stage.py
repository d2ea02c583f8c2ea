"""fully_shard (FSDP2) as the innermost wrapping, always: also over one rank it casts parameters, and gives every
gradient the layout of its parameter. dp_shard and cp share out, dp_replicate repeats; experts have a mesh of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.parallel.expert import Experts
from trainer.parallel.pipeline import layers_of
from trainer.parallel.submeshes import Meshes
from trainer.settings.precision import Precision


def apply_sharding(decoder: nn.Module, meshes: Meshes, precision: Precision) -> None:
    """Shards a stage in place: experts, layers, and what is left with the root."""
    settings: dict[str, Any] = {"mp_policy": build_mixed_precision(precision)}
    if meshes.pp.size() > 1:  # gathered once for all micro-batches of a step
        settings["reshard_after_forward"] = False
    for layer in layers_of(decoder).values():
        experts = getattr(layer.mlp, "experts", None)
        if isinstance(experts, Experts):
            fully_shard(experts, mesh=meshes.experts, **settings)
        fully_shard(layer, mesh=meshes.shard, **settings)
    fully_shard(decoder, mesh=meshes.shard, **settings)
    apply_pure_sums(decoder)


def apply_pure_sums(model: nn.Module) -> None:
    """Gradients of what is sharded are summed, not averaged: the loss is divided by the whole step's labels already."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM


def build_mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    """bf16_native alone: parameters are cast before they are gathered, gradients are reduced in fp32."""
    if precision.name != "bf16_native":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
