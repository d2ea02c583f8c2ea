"""Which blocks fully_shard gathers while another one computes.

When fully_shard reduces gradients while a step goes over several micro-batches: fsdp, hsdp and nd alike.

accumulate    each micro-batch                          the last one          between them
sharded       reduce-scatter, added to the shards       all-reduce, if any    1/n of the gradients
whole         nothing                                   both                  all of them

n is the number of shards, the all-reduce that between replicas. A pipeline does the second by itself, in torch's
schedules.

In which element types fully_shard gathers what: weights of products in those of the products, all others in fp32.

precision      gathered                                      gradients reduced
fp32           fp32                                          in the setting reduce_dtype
bf16, fp16     weights of products in 16 bits, others fp32   the same

fully_shard (FSDP2) as the innermost wrapping, always: also over one rank it casts parameters, and gives every
gradient the layout of its parameter. dp_shard and cp share out, dp_replicate repeats; experts have a mesh of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import reshards_after_forward
from trainer.distributed.world import REDUCED, Precision
from trainer.models.experts import Experts
from trainer.models.mixed_precision import is_product_weight
from trainer.parallel.pipeline import layers_of
from trainer.parallel.process_groups import Meshes

TORCHS_OWN = 1
"""Without being told, torch gathers one block ahead: forward because the host is ahead of the device, backward in the
opposite order."""


def apply_prefetch(blocks: Sequence[Sequence[FSDPModule]], ahead: int) -> None:
    """Makes each block gather the `ahead` blocks that come next, forward and backward, in place.

    Args:
        blocks: in the order of the model, what of each is sharded; the block itself is the last one.
    """
    if ahead == TORCHS_OWN:
        return
    for i, block in enumerate(blocks):
        block[-1].set_modules_to_forward_prefetch(_flat(blocks[i + 1 : i + 1 + ahead]))
        block[-1].set_modules_to_backward_prefetch(_flat(blocks[max(0, i - ahead) : i][::-1]))


def _flat(blocks: Sequence[Sequence[FSDPModule]]) -> list[FSDPModule]:
    return [module for block in blocks for module in reversed(block)]


def apply_sync(model: FSDPModule, sharded: bool, completes_step: bool) -> None:
    """Tells a sharded model, in place, what to do after the next backward pass.

    Args:
        sharded: of `knob_table.accumulates_sharded`.
        completes_step: no micro-batch of the step follows.
    """
    if sharded:
        model.set_requires_all_reduce(completes_step)
    else:
        model.set_requires_gradient_sync(completes_step)


def build_mixed_precision(precision: Precision, reduce_dtype: str) -> MixedPrecisionPolicy:
    """For fully_shard; `apply_gathered_types` must follow.

    Args:
        reduce_dtype: the setting.
    """
    # the model casts what enters the products itself
    return MixedPrecisionPolicy(
        param_dtype=precision.autocast_dtype, reduce_dtype=REDUCED[reduce_dtype], cast_forward_inputs=False
    )


def apply_gathered_types(model: nn.Module, precision: Precision) -> None:
    """Exempts from the policy what enters no product, in a model that is sharded and has not run yet.

    fully_shard knows one type per module. Its gathering takes any mixture (as bytes), its reduction wants gradients of
    one type: the gathered parameters ask autograd for fp32 ones, in which they are reduced anyway.
    """
    for parameter in _sharded_parameters(model):
        # whole gradients of several micro-batches would be added up in the type of their reduction
        parameter.to_accumulated_grad_if_needed = _leave
        if precision.autocast_dtype is None:
            continue
        _gather_fp32_gradients(parameter)
        place = parameter._module_info
        if not is_product_weight(place.module, place.param_name):
            _gather_unchanged(parameter)


def _sharded_parameters(model: nn.Module) -> Iterator[Any]:
    """torch's FSDPParam of every parameter (torch 2.13 has several groups to a module, 2.11 one)."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in [state._fsdp_param_group] if groups is None else groups:
                yield from group.fsdp_params if group is not None else []


def _leave() -> None:
    """A gradient stays where autograd adds to it, in fp32."""


def _gather_unchanged(parameter: Any) -> None:
    init = parameter.init_dtype_attrs

    def init_dtype_attrs(policy: MixedPrecisionPolicy) -> None:
        init(policy)
        parameter.param_dtype = None

    parameter.init_dtype_attrs = init_dtype_attrs


def _gather_fp32_gradients(parameter: Any) -> None:
    init = parameter.init_unsharded_param

    def init_unsharded_param() -> None:
        init()
        parameter._unsharded_param.grad_dtype = torch.float32

    parameter.init_unsharded_param = init_unsharded_param


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
