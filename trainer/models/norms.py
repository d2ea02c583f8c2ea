"""Norms computed in fp32 whose input and output have 16 bits: autocast would keep an fp32 copy of both.

Kept for the backward pass: the input as it came, and one or two fp32 numbers per token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ProductLayerNorm(nn.LayerNorm):
    """Layer norm; under autocast as told above, what comes out enters products."""

    def forward(self, given: Tensor) -> Tensor:
        """[.., *normalized_shape] -> the same shape."""
        if not torch.is_autocast_enabled(given.device.type):
            return super().forward(given)
        dtype = torch.get_autocast_dtype(given.device.type)
        shape, eps = self.normalized_shape, self.eps
        found: Tensor = _LayerNorm.apply(given, self.weight, self.bias, shape, eps, dtype)  # type: ignore[no-untyped-call]
        return found


class ProductRmsNorm(nn.Module):
    """The forward of transformers' RMS norms (weight, variance_epsilon); under autocast as told above."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, given: Tensor) -> Tensor:
        """[.., hidden] -> the same shape."""
        if torch.is_autocast_enabled(given.device.type):
            dtype = torch.get_autocast_dtype(given.device.type)
            found: Tensor = _RmsNorm.apply(given, self.weight, self.variance_epsilon, dtype)  # type: ignore[no-untyped-call]
            return found
        wide = given.float()
        lowered = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * lowered.to(given.dtype)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float, dtype: torch.dtype
    ) -> Tensor:
        with torch.autocast(given.device.type, enabled=False):
            found, mean, scale = torch.native_layer_norm(given.float(), shape, weight, bias, eps)
        ctx.save_for_backward(given, weight, bias, mean, scale)
        ctx.shape = shape
        return found.to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, bias, mean, scale = ctx.saved_tensors
        wanted = [
            ctx.needs_input_grad[0],
            ctx.needs_input_grad[1],
            bias is not None and ctx.needs_input_grad[2],
        ]
        found = torch.ops.aten.native_layer_norm_backward(
            gradients[0].float(), given.float(), ctx.shape, mean, scale, weight, bias, wanted
        )
        return *found, None, None, None


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        with torch.autocast(given.device.type, enabled=False):
            wide = given.float()
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
            ctx.save_for_backward(given, weight, scale)
            return (weight * (wide * scale)).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, scale = ctx.saved_tensors
        gradient, lowered = gradients[0].float(), given.float() * scale
        of_given = of_weight = None
        if ctx.needs_input_grad[0]:
            of_lowered = gradient * weight
            of_given = of_lowered - lowered * (of_lowered * lowered).mean(-1, keepdim=True)
            of_given = (of_given * scale).to(given.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (gradient * lowered).flatten(0, -2).sum(0)
        return of_given, of_weight, None, None
