"""Train with products in bf16 or fp16: one recipe under every strategy.

    weights            fp32 in storage; a strategy gathers the products' weights in 16 bits, all others in fp32
    products           in 16 bits
    stream, gradients  between layers in 16 bits
    norms, losses      in fp32
    gradients of weights, their reduction, optimizer    fp32

`apply_low_precision` replaces the classes of linear layers, embeddings and norms. Autocast still decides the type of
each operation. On its own it keeps each cast for the backward pass: 16-bit copies of all weights, fp32 copies around
norms, and an input once for each product. The classes below keep a single copy.

Products keep their weights in fp32, without a second copy:

    fp32 weight ──▶ 16 bits, for this product ──▶ y        autocast would keep its cast until the backward pass:
         └────────▶ 16 bits, once more ──▶ gradients       which adds half of the weights' memory

Casting twice takes 6 bytes of traffic per weight and micro-batch, one or two per cent of a language model's step. A
strategy that gathers its weights gathers them in 16 bits (see `is_product_weight`), so they need no cast. Convolutions
use plain autocast: their weights are small.

Norms compute in fp32 with 16-bit input and output. They keep the unchanged input and one or two fp32 numbers per token
for the backward pass; autocast would keep an fp32 copy of input and output.

`LossScale` adapts the loss factor that fp16 gradients need (precision: fp16).
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
from transformers.pytorch_utils import Conv1D

from stratlab_spec.exit_codes import NotFinite
from trainer.models.model_with_loss import Learner

EXPERTS = ("gate_up_proj", "down_proj")
"""Product weights of a mixture of experts, [expert, out, in]."""


class ProductLinear(nn.Linear):
    """A linear layer; under autocast it casts its weight twice instead of keeping the cast."""

    def forward(self, given: Tensor) -> Tensor:
        """[.., in] -> [.., out]."""
        if not torch.is_autocast_enabled(given.device.type) or self.weight.dtype != torch.float32:
            return F.linear(given, self.weight, self.bias)
        found: Tensor = _Product.apply(cast_to_products(given), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


class GatheredLinear(nn.Linear):
    """A linear layer without autocast whose weight is whole only while it computes.

    Autograd would keep a view of the weight, and with it the whole gathered buffer. This layer keeps the parameter
    instead, which the strategy empties and refills.
    """

    def forward(self, given: Tensor) -> Tensor:
        """[.., in] -> [.., out], in the type of the weight."""
        found: Tensor = _Product.apply(given, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


def apply_gathered_linears(model: nn.Module) -> None:
    """Turn every linear layer into a `GatheredLinear`, in place; names and weights stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = GatheredLinear


class ProductEmbedding(nn.Embedding):
    """A word embedding whose result has 16 bits under autocast.

    A look-up is a product with zeros and a one. So the result does not depend on the type in which a strategy gathers
    the table.
    """

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [..] -> [.., hidden]."""
        return cast_to_products(super().forward(ids))


class ScaledEmbedding(ProductEmbedding):
    """The same for a table whose result is scaled (Gemma-3); the factor has the type of the result."""

    embed_scale: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [..] -> [.., hidden]."""
        found = super().forward(ids)
        return found * self.embed_scale.to(found.dtype)


def cast_to_products(given: Tensor) -> Tensor:
    """Cast to the products' element type under autocast."""
    kind = given.device.type
    return given.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else given


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # autograd also drops the input of a frozen weight
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
    """Whether `owner`'s parameter of this name enters only products, so that it may be gathered in 16 bits.

    All others (of norms, biases, positions, routers) are gathered in their own type.
    """
    if name in EXPERTS:
        return True
    return name == "weight" and isinstance(owner, (nn.Linear, nn.Embedding, _ConvNd, Conv1D))


class ProductLayerNorm(nn.LayerNorm):
    """Layer norm that computes in fp32 under autocast and returns the products' type."""

    def forward(self, given: Tensor) -> Tensor:
        """[.., *normalized_shape] -> the same shape."""
        if not torch.is_autocast_enabled(given.device.type):
            return super().forward(given)
        dtype = torch.get_autocast_dtype(given.device.type)
        shape, eps = self.normalized_shape, self.eps
        found: Tensor = _LayerNorm.apply(given, self.weight, self.bias, shape, eps, dtype)  # type: ignore[no-untyped-call]
        return found


class ProductRmsNorm(nn.Module):
    """The forward of transformers' RMS norms (weight, variance_epsilon), in fp32 under autocast."""

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


class _CastWeights:
    """Give transformers' own experts with their weights in the products' type; autocast skips grouped products."""

    def __init__(self, experts: nn.Module) -> None:
        self._experts = experts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._experts, name)
        return cast_to_products(found) if isinstance(found, Tensor) else found


_KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: ProductLinear,
    nn.Embedding: ProductEmbedding,
    nn.LayerNorm: ProductLayerNorm,
}
ATTENTION = "Attention"
"""Suffix of class names; a block with such a module is a transformer layer with a stream."""
RMS_NORM = "RMSNorm"
"""Suffix of class names; transformers has one such class per family, all with the same forward."""


def apply_low_precision(model: Learner, dtype: torch.dtype) -> None:
    """Apply the module's recipe to the model in place, before a strategy wraps it; names and weights stay."""
    model.products_dtype = dtype
    for module in model.modules():
        if kind := _KINDS.get(type(module)):
            module.__class__ = kind
        elif isinstance(module, nn.Embedding) and hasattr(module, "embed_scale"):
            module.__class__ = ScaledEmbedding
        elif type(module).__name__.endswith(RMS_NORM) and hasattr(module, "variance_epsilon"):
            module.__class__ = ProductRmsNorm
        elif type(module).__module__.startswith("transformers.") and hasattr(module, EXPERTS[0]):
            module.forward = functools.partial(type(module).forward, _CastWeights(module))
    for block in model.blocks():
        if any(type(module).__name__.endswith(ATTENTION) for module in block.modules()):
            block.forward = functools.partial(_forward_cast, block.forward)


def _forward_cast(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a layer with its stream, the first argument or `hidden_states`, cast to 16 bits.

    It replaces forward instead of adding a hook, so that it runs after the strategy's hooks on the inputs.
    """
    if args:
        return forward(cast_to_products(args[0]), *args[1:], **kwargs)
    return forward(**kwargs | {"hidden_states": cast_to_products(kwargs["hidden_states"])})


@dataclass
class LossScale:
    """Dynamic loss scaling by the global gradient norm, with the rules and constants of torch.amp.GradScaler.

    Unlike torch's scaler it has a floor, like DeepSpeed's (min_loss_scale 1). From 65536, the 17th skipped step in a
    row ends the run, because all later steps would be skipped too.

    Every strategy uses the same class. The norm is the same number on all ranks, so they skip and back off together.
    DeepSpeed's own scaler for autocast is not used: it never lowers its scale after a skipped step, and its norm stays
    scaled (deepspeed 0.19.8, stage_1_and_2.py and stage3.py, `torch_autocast_gradscaler`).
    """

    enabled: bool
    scale: float = field(default=2.0**16)
    good_steps: int = 0

    GROWTH = 2.0
    BACKOFF = 0.5
    INTERVAL = 2000
    FLOOR = 1.0
    """A scale below 1 would shrink the gradients."""

    def __post_init__(self) -> None:
        if not self.enabled:
            self.scale = 1.0

    def update(self, skipped: bool) -> None:
        """Halve the scale after a skipped step, double it after 2000 good ones.

        Raises:
            NotFinite: a step was skipped at the lowest scale.
        """
        if not self.enabled:
            return
        if skipped and self.scale <= self.FLOOR:
            raise NotFinite(
                f"fp16 gradients are not finite even at the lowest loss scale, {self.FLOOR:g}: the model diverged "
                "or needs a wider range; lower TRAINER_LR, or use TRAINER_PRECISION=bf16 or fp32 "
                "[SL-loss-scale-floor]"
            )
        if skipped:
            self.scale, self.good_steps = self.scale * self.BACKOFF, 0
        elif self.good_steps + 1 == self.INTERVAL:
            self.scale, self.good_steps = self.scale * self.GROWTH, 0
        else:
            self.good_steps += 1

    def take_out(self, gradients: Iterable[torch.Tensor], norm: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Remove the scale from gradients and norm, adapt it, and return (norm, whether to skip the update).

        Gradients change in place. The host waits for the norm. Without a scale the gradients stay unchanged.

        Args:
            gradients: this rank's parts; not read without a scale.
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
        """Whether to skip an update with gradients of this norm."""
        return self.enabled and not math.isfinite(norm)

    def state(self) -> torch.Tensor:
        """Return the checkpoint's tensor: (scale, good steps) as float64."""
        return torch.tensor([self.scale, self.good_steps], dtype=torch.float64)

    def load(self, state: torch.Tensor) -> None:
        """Restore a tensor from `state`."""
        self.scale, self.good_steps = float(state[0]), int(state[1])
