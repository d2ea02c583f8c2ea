"""In which element types fully_shard gathers what: weights of products in those of the products, all others in fp32.

precision      gathered                                      gradients reduced
fp32           fp32                                          in the setting reduce_dtype
bf16, fp16     weights of products in 16 bits, others fp32   the same
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from trainer.models.products import is_product_weight
from trainer.settings.precision import REDUCED, Precision


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
