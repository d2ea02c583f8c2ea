"""Products in 16 bits with weights that are kept in fp32, without a second copy of the weights.

    fp32 weight ──▶ 16 bits, for this product ──▶ y        autocast would keep what it casts until the backward pass:
         └────────▶ 16 bits, once more ──▶ gradients       half as much again as the weights themselves

Casting twice takes 6 bytes of traffic per weight and micro-batch, one or two per cent of a language model's step. Where
a strategy gathers its weights, they come in 16 bits (`is_product_weight` tells which) and nothing is cast.
Convolutions stay autocast's own: their weights are small.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

EXPERTS = ("gate_up_proj", "down_proj")
"""Weights of the products of a mixture of experts, [expert, out, in]."""


class ProductLinear(nn.Linear):
    """A linear layer; under autocast as told above."""

    def forward(self, given: Tensor) -> Tensor:
        """[.., in] -> [.., out]."""
        if not torch.is_autocast_enabled(given.device.type) or self.weight.dtype != torch.float32:
            return F.linear(given, self.weight, self.bias)
        found: Tensor = _Product.apply(cast_to_products(given), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


class GatheredLinear(nn.Linear):
    """A linear layer whose weight is whole only while it computes, without autocast. Autograd would keep a view of it,
    and with the view all that was gathered; this keeps the parameter, which the strategy empties and fills again."""

    def forward(self, given: Tensor) -> Tensor:
        """[.., in] -> [.., out], in the type of the weight."""
        found: Tensor = _Product.apply(given, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


def apply_gathered_linears(model: nn.Module) -> None:
    """In place; names and weights stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = GatheredLinear


class ProductEmbedding(nn.Embedding):
    """A table of words. A look-up is a product with zeros and a one: under autocast its result has 16 bits, the
    same whether or not a strategy gathers the table so."""

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [..] -> [.., hidden]."""
        return cast_to_products(super().forward(ids))


def cast_to_products(given: Tensor) -> Tensor:
    """In the products' element type where there is autocast."""
    kind = given.device.type
    return given.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else given


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # of a frozen weight no input is kept, as autograd does it
        of_given, of_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(given if of_weight else None, weight if of_given else None)
        ctx.weight_dtype = weight.dtype
        ctx.has_bias = bias is not None
        dtype = given.dtype
        return F.linear(given, weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, weight = ctx.saved_tensors
        of_given = of_weight = of_bias = None
        gradient = gradients[0]
        if ctx.needs_input_grad[0]:
            of_given = gradient @ weight.to(gradient.dtype)
        rows = gradient.flatten(0, -2)
        if ctx.needs_input_grad[1]:
            of_weight = (rows.T @ given.flatten(0, -2)).to(ctx.weight_dtype)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            of_bias = rows.sum(0).to(ctx.weight_dtype)
        return of_given, of_weight, of_bias


def is_product_weight(owner: nn.Module, name: str) -> bool:
    """Whether a parameter of `owner`, by its name there, enters products only: it may be gathered in 16 bits. All
    others (of norms, biases, positions, routers) are gathered as they are."""
    if name in EXPERTS:
        return True
    return name == "weight" and isinstance(owner, (nn.Linear, nn.Embedding, _ConvNd))
