"""Apply fully_shard (FSDP2) for fsdp, hsdp and nd.

`apply_sharding` sets the gathered types, `apply_prefetch` the time of gathering, `apply_sync` the reduction:

precision      gathered                                      gradients reduced
fp32           fp32                                          in the setting reduce_dtype
bf16, fp16     weights of products in 16 bits, others fp32   in the setting reduce_dtype

accumulate    each micro-batch                          the last one          between them
sharded       reduce-scatter, added to the shards       all-reduce, if any    1/n of the gradients
whole         nothing                                   both                  all of them

n is the number of shards; the all-reduce is between replicas. With a pipeline, torch's schedules control the reduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import reshards_after_forward
from trainer.distributed.world import REDUCED, Precision
from trainer.models.experts import Experts
from trainer.models.mixed_precision import is_product_weight

TORCHS_OWN = 1
"""By default torch gathers one block ahead: in forward because the host runs ahead of the device, in backward in
reverse order.
"""


def apply_sharding(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    config: Config,
    precision: Precision,
    experts_mesh: DeviceMesh | None = None,
    stages: int = 1,
) -> None:
    """Shard in place: each block on its own, its experts before it, and the remaining parameters with the root.

    It is always the innermost wrapper. Over a single rank it also casts parameters and gives every gradient the layout
    of its parameter.

    Args:
        mesh: (shards) or (replicas, shards).
        experts_mesh: the same for experts; None = shard them like the rest of their block.
        stages: of a pipeline.
    """
    offload = OffloadPolicy()
    if config.offload == "all":
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
    settings: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=precision.autocast_dtype,
            reduce_dtype=REDUCED[config.reduce_dtype],
            cast_forward_inputs=False,  # the model itself casts the inputs of products
        ),
        "offload_policy": offload,
    }
    of_blocks = settings | {"reshard_after_forward": reshards_after_forward(config, stages)}
    sharded: list[list[Any]] = []
    for block in blocks:
        experts = getattr(getattr(block, "mlp", None), "experts", None) if experts_mesh is not None else None
        sharded.append([block])
        if isinstance(experts, Experts):
            sharded[-1].insert(0, fully_shard(experts, mesh=experts_mesh, **of_blocks))
        fully_shard(block, mesh=mesh, **of_blocks)
    fully_shard(model, mesh=mesh, reshard_after_forward=False, **settings)
    apply_prefetch(sharded, config.prefetch_blocks)
    apply_gathered_types(model, precision)
    for module in _sharded_modules(model):
        # sum instead of average: the loss is already divided by the whole step's labels
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo lacks PREMUL_SUM


def apply_prefetch(blocks: Sequence[Sequence[FSDPModule]], ahead: int) -> None:
    """Make each block gather the next `ahead` blocks, forward and backward, in place.

    Args:
        blocks: in the order of the model, the sharded modules of each; the block itself is the last one.
    """
    if ahead == TORCHS_OWN:
        return
    for i, block in enumerate(blocks):
        block[-1].set_modules_to_forward_prefetch(_flat(blocks[i + 1 : i + 1 + ahead]))
        block[-1].set_modules_to_backward_prefetch(_flat(blocks[max(0, i - ahead) : i][::-1]))


def _flat(blocks: Sequence[Sequence[FSDPModule]]) -> list[FSDPModule]:
    return [module for block in blocks for module in reversed(block)]


def apply_sync(model: FSDPModule, sharded: bool, completes_step: bool) -> None:
    """Set, in place, how a sharded model reduces after the next backward pass.

    Args:
        sharded: from `accumulates_sharded`.
        completes_step: whether this is the last micro-batch of the step.
    """
    if sharded:
        model.set_requires_all_reduce(completes_step)
    else:
        model.set_requires_gradient_sync(completes_step)


def apply_gathered_types(model: nn.Module, precision: Precision) -> None:
    """Exempt parameters outside products from the 16-bit policy, in a sharded model that has not run yet.

    fully_shard has one type per module. Its gathering accepts mixed types (as bytes), but its reduction needs gradients
    of one type. So the gathered parameters request fp32 gradients from autograd, the type of the reduction.
    """
    for parameter in _sharded_parameters(model):
        # autograd accumulates gradients here in fp32, not in the type of the reduction
        parameter.to_accumulated_grad_if_needed = lambda: None
        if precision.autocast_dtype is None:
            continue
        parameter.init_unsharded_param = _with_fp32_gradient(parameter)
        place = parameter._module_info
        if not is_product_weight(place.module, place.param_name):
            parameter.init_dtype_attrs = _gathered_as_it_is(parameter)


def _with_fp32_gradient(parameter: Any) -> Any:
    init = parameter.init_unsharded_param

    def init_unsharded_param() -> None:
        init()
        parameter._unsharded_param.grad_dtype = torch.float32

    return init_unsharded_param


def _gathered_as_it_is(parameter: Any) -> Any:
    init = parameter.init_dtype_attrs

    def init_dtype_attrs(policy: MixedPrecisionPolicy) -> None:
        init(policy)
        parameter.param_dtype = None

    return init_dtype_attrs


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _sharded_parameters(model: nn.Module) -> Iterator[Any]:
    """Return torch's FSDPParam of every parameter (torch 2.13 has several groups per module, 2.11 one)."""
    for module in _sharded_modules(model):
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        for group in [state._fsdp_param_group] if groups is None else groups:
            yield from group.fsdp_params if group is not None else []
