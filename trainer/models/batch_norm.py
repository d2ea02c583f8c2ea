"""Apply batch norm across processes.

batch_norm     a layer normalises, in training, with            losses and gradients equal one process with
local          the micro-batch of its own rank                  the same micro_batch_size
synchronised   the micro-batches of all ranks together          all of them as its micro-batch, without accumulation

This holds under every strategy. With `local` the running statistics differ between ranks and from a single process,
which has seen every micro-batch. `average_running_statistics` gives all ranks their mean before an evaluation or a
checkpoint. With `synchronised` they are equal on every rank and equal those in one process.
`SynchronisedBatchNorm` runs on CPUs and GPUs (torch's SyncBatchNorm refuses CPUs):

    forward    each rank's mean and variance per channel ─ all-gather ─▶ the values of all samples, equal on every rank
    backward   each rank's sums of dy and of dy x normalised ─ all-reduce ─▶ the gradient through mean and variance

Each layer runs two collectives per micro-batch, with 2 fp32 numbers per channel and rank in each. Every rank has
equally many samples. Gradient accumulation does not widen the statistics: they cover micro_batch_size x processes
samples.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase


def find_batch_norms(model: nn.Module) -> dict[str, _NormBase]:
    """Return the layers that keep running statistics, by name, in the order of the modules."""
    return {n: m for n, m in model.named_modules() if isinstance(m, _NormBase) and m.track_running_stats}


@torch.no_grad()
def average_running_statistics(model: nn.Module) -> None:
    """Replace every rank's running statistics by their mean over all ranks.

    Collective: one all-reduce. A model without batch norm and a single process stay unchanged. Call it before an
    evaluation and before a checkpoint of rank 0's state. A second call changes nothing.
    """
    layers = find_batch_norms(model).values()
    statistics = [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var)]
    if not statistics or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    flat = torch.cat([tensor.float().flatten() for tensor in statistics])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([tensor.numel() for tensor in statistics])
    for tensor, part in zip(statistics, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


class SynchronisedBatchNorm(_BatchNorm):
    """Batch norm over all ranks; in evaluation and in a single process it is torch's layer unchanged."""

    def forward(self, given: Tensor) -> Tensor:
        """[batch, channel, ..] -> the same shape and element type; collective in training."""
        if not self.training:
            return super().forward(given)
        found, mean, variance = _Normalise.apply(given, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        if self.running_mean is not None:
            self._move(mean, variance, given.numel() // given.shape[1] * _processes())
        return found  # type: ignore[no-any-return]

    @torch.no_grad()
    def _move(self, mean: Tensor, variance: Tensor, samples: int) -> None:
        """Update the running statistics by one micro-batch; without a momentum they are the mean of all."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        share: Any = momentum if momentum is not None else (1.0 / self.num_batches_tracked).to(mean.dtype)
        assert self.running_mean is not None and self.running_var is not None
        unbiased = variance * (samples / (samples - 1))
        for kept, seen in ((self.running_mean, mean), (self.running_var, unbiased)):
            kept.copy_(kept.to(seen.dtype).lerp(seen, share))

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions after the channel."""


def apply_synchronised_batch_norm(model: nn.Module) -> int:
    """Convert every batch norm layer of the model in place and return their number; names and weights stay."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        layer.__class__ = SynchronisedBatchNorm
    return len(layers)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (normalised, mean, variance); the last two over all ranks, in fp32, or in fp64 for fp64 input."""
        if given.numel() // given.shape[1] * _processes() < 2:
            raise ValueError(
                f"batch norm needs more than one value per channel; the input has the shape {tuple(given.shape)} "
                "[SL-batch-norm-one-value]"
            )
        # not var_mean: it needs the images in fp32 and extra GPU memory (0.4 GiB for 2048 channels of 7 x 7)
        exact = given.new_zeros(given.shape[1], dtype=torch.promote_types(given.dtype, torch.float32))
        mean, variance = torch.batch_norm_update_stats(given, exact, exact, 0.0)
        if (processes := _processes()) > 1:
            gathered = [mean.new_empty(2, len(mean)) for _ in range(processes)]
            dist.all_gather(gathered, torch.stack([mean, variance]))
            means, variances = torch.stack(gathered).unbind(1)
            mean = means.mean(0)
            variance = variances.mean(0) + (means - mean).square().mean(0)
        scale, shift = (None if part is None else part.to(mean.dtype) for part in (weight, bias))
        found = F.batch_norm(given, mean, variance, scale, shift, training=False, eps=eps)
        ctx.save_for_backward(given, weight, mean, variance)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance)
        return found, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, mean, variance = ctx.saved_tensors
        exact = None if weight is None else weight.to(mean.dtype)
        slope = torch.rsqrt(variance + ctx.eps)
        # keep the channels-last memory format: otherwise each gradient would be copied, twice
        is_channels_last = given.dim() == 4 and given.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if is_channels_last else torch.contiguous_format
        given_back = gradients[0].contiguous(memory_format=layout)
        found, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            given_back, given, exact, None, None, mean, slope, True, ctx.eps, [True] * 3
        )
        if (processes := _processes()) > 1:  # until here the gradient uses only this rank's sums
            own = torch.stack([of_bias, of_weight]).to(mean.dtype)
            whole = own.clone()
            dist.all_reduce(whole)
            scale = slope if exact is None else slope * exact
            off = (own - whole / processes) / (given.numel() // given.shape[1]) * scale
            # normalise here: batch_norm would copy the images to fp32
            found += F.batch_norm(given, mean, variance, off[1], off[0], training=False, eps=ctx.eps)
        wanted = ctx.needs_input_grad
        return (
            found.to(given.dtype),
            of_weight.to(weight.dtype) if wanted[1] else None,
            of_bias.to(weight.dtype) if wanted[2] else None,
            None,
        )


def _processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
