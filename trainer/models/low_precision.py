"""What bf16 and fp16 make of a model, one recipe under every strategy.

    weights            fp32 where they are kept; gathered in 16 bits those of products, all others in fp32
    products           in 16 bits
    stream, gradients  between layers in 16 bits
    norms, losses      in fp32
    gradients of weights, their reduction, optimizer    fp32

Autocast decides what is computed in which type. Left to itself it keeps what it casts: 16-bit copies of all weights
from the forward to the backward pass, fp32 copies around norms, an input once for each product that it enters. The
classes in here keep one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.models.learner import Learner
from trainer.models.norms import ProductLayerNorm, ProductRmsNorm
from trainer.models.products import ProductEmbedding, ProductLinear, cast_to_products

_KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: ProductLinear,
    nn.Embedding: ProductEmbedding,
    nn.LayerNorm: ProductLayerNorm,
}
ATTENTION = "Attention"
"""End of a class's name: its block is a layer of a transformer, with a stream."""
RMS_NORM = "RMSNorm"
"""End of a class's name: transformers has one for every family, alike in all."""


def apply_low_precision(model: Learner, dtype: torch.dtype) -> None:
    """Makes the model compute so, in place, before a strategy has it: names and weights stay."""
    model.products_dtype = dtype
    for module in model.modules():
        if kind := _KINDS.get(type(module)):
            module.__class__ = kind
        elif type(module).__name__.endswith(RMS_NORM) and hasattr(module, "variance_epsilon"):
            module.__class__ = ProductRmsNorm
    for block in model.blocks():
        if any(type(module).__name__.endswith(ATTENTION) for module in block.modules()):
            block.forward = functools.partial(_forward_cast, block.forward)


def _forward_cast(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A layer whose stream, the first argument or `hidden_states`, has 16 bits.

    In the place of forward, not as a hook before it: what a strategy does to inputs in hooks comes first.
    """
    if args:
        return forward(cast_to_products(args[0]), *args[1:], **kwargs)
    return forward(**kwargs | {"hidden_states": cast_to_products(kwargs["hidden_states"])})
