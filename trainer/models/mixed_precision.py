"""Products in 16 bits with weights that are kept in fp32, without a second copy of the weights.

    fp32 weight ──▶ 16 bits, for this product ──▶ y        autocast would keep what it casts until the backward pass:
         └────────▶ 16 bits, once more ──▶ gradients       half as much again as the weights themselves

Casting twice takes 6 bytes of traffic per weight and micro-batch, one or two per cent of a language model's step. Where
a strategy gathers its weights, they come in 16 bits (`is_product_weight` tells which) and nothing is cast.
Convolutions stay autocast's own: their weights are small.

Norms computed in fp32 whose input and output have 16 bits: autocast would keep an fp32 copy of both.

Kept for the backward pass: the input as it came, and one or two fp32 numbers per token.

What bf16 and fp16 make of a model, one recipe under every strategy.

    weights            fp32 where they are kept; gathered in 16 bits those of products, all others in fp32
    products           in 16 bits
    stream, gradients  between layers in 16 bits
    norms, losses      in fp32
    gradients of weights, their reduction, optimizer    fp32

Autocast decides what is computed in which type. Left to itself it keeps what it casts: 16-bit copies of all weights
from the forward to the backward pass, fp32 copies around norms, an input once for each product that it enters. The
classes in here keep one.

The factor of a loss whose gradients are fp16, found while it trains (precision: fp16).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from stratlab_spec.exit_codes import NotFinite
from trainer.models.model_with_loss import Learner

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


@dataclass
class LossScale:
    """Dynamic loss scaling with the rules and constants of torch.amp.GradScaler, from the global gradient norm.

    It has a floor, as DeepSpeed's (min_loss_scale 1) and unlike torch's: from 65536 the 17th step in a row that is
    skipped ends the run, which would skip all others as well.

    One object for every strategy: the norm is the same number on all ranks, so they skip and back off together.
    DeepSpeed's own scaler for autocast is not used: after a skipped step it never lowers its scale, and its norm
    stays scaled (deepspeed 0.19.8, stage_1_and_2.py and stage3.py, `torch_autocast_gradscaler`).
    """

    enabled: bool
    scale: float = field(default=2.0**16)
    good_steps: int = 0

    GROWTH = 2.0
    BACKOFF = 0.5
    INTERVAL = 2000
    FLOOR = 1.0
    """A lower scale would make gradients smaller than they are."""

    def __post_init__(self) -> None:
        if not self.enabled:
            self.scale = 1.0

    def update(self, skipped: bool) -> None:
        """After a step: halve after a skipped one, double after 2000 good ones.

        Raises:
            NotFinite: a step was skipped at the lowest scale.
        """
        if not self.enabled:
            return
        if skipped and self.scale <= self.FLOOR:
            raise NotFinite(
                f"gradients in fp16 are not finite at a loss scale of {self.FLOOR:g} either, the lowest: the model has "
                "diverged, or needs a wider range; lower TRAINER_LR, or take TRAINER_PRECISION=bf16 or fp32 "
                "[SL-loss-scale-floor]"
            )
        if skipped:
            self.scale, self.good_steps = self.scale * self.BACKOFF, 0
        elif self.good_steps + 1 == self.INTERVAL:
            self.scale, self.good_steps = self.scale * self.GROWTH, 0
        else:
            self.good_steps += 1

    def take_out(self, gradients: Iterable[torch.Tensor], norm: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Takes the scale out of gradients, in place, and of their norm, and adapts to it; (norm, whether the update
        must be left out). The host waits for the norm; without a scale nothing happens.

        Args:
            gradients: this rank's parts; not looked at without a scale.
            norm: of the whole scaled gradient, the same on every rank.
        """
        if not self.enabled:
            return norm, False
        norm = norm / self.scale
        torch._foreach_mul_(list(gradients), 1.0 / self.scale)
        skip = self.must_skip(float(norm))
        self.update(skip)
        return norm, skip

    def must_skip(self, norm: float) -> bool:
        """Whether an update with gradients of this norm must be left out."""
        return self.enabled and not math.isfinite(norm)

    def state(self) -> torch.Tensor:
        """What a checkpoint keeps: (scale, good steps) as float64."""
        return torch.tensor([self.scale, self.good_steps], dtype=torch.float64)

    def load(self, state: torch.Tensor) -> None:
        """The counterpart of `state`."""
        self.scale, self.good_steps = float(state[0]), int(state[1])
