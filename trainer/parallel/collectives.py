"""Collectives with a backward pass: the backward pass of each is its reverse."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

Splits = list[int] | None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: Tensor, given: Splits, taken: Splits, group: dist.ProcessGroup) -> Tensor:
        ctx.given, ctx.taken, ctx.group = given, taken, group
        return _exchange(sent, given, taken, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradients[0], ctx.taken, ctx.given, ctx.group), None, None, None


def _exchange(sent: Tensor, given: Splits, taken: Splits, group: dist.ProcessGroup) -> Tensor:
    rows = sent.shape[0] if taken is None else sum(taken)
    got = sent.new_empty((rows, *sent.shape[1:]))
    dist.all_to_all_single(got, sent.contiguous(), taken, given, group=group)
    return got


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        part = part.movedim(dim, 0).contiguous()
        whole = part.new_empty((group.size() * part.shape[0], *part.shape[1:]))
        dist.all_gather_into_tensor(whole, part, group=group)
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        whole = gradients[0].movedim(ctx.dim, 0).contiguous()
        part = whole.new_empty((whole.shape[0] // ctx.group.size(), *whole.shape[1:]))
        dist.reduce_scatter_tensor(part, whole, group=ctx.group)
        return part.movedim(0, ctx.dim), None, None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coming: Tensor) -> Tensor:
        return coming.wait() if isinstance(coming, AsyncCollectiveTensor) else coming.view_as(coming)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def wait_for(coming: Tensor) -> Tensor:
    """Return a plain tensor with the history of `coming`, which a torch collective may still fill."""
    result: Tensor = _Wait.apply(coming)  # type: ignore[no-untyped-call]
    return result


# Stay outside compiled blocks: there an autograd function of this module loses its gradient (torch 2.11).
@torch.compiler.disable
def all_to_all(sent: Tensor, group: dist.ProcessGroup, given: Splits = None, taken: Splits = None) -> Tensor:
    """Send rows of `sent` to the ranks of `group`, in rank order, and return the received rows.

    Args:
        given: rows for each rank; None = equally many.
        taken: rows from each rank; None = equally many.
    """
    result: Tensor = _AllToAll.apply(sent, given, taken, group)  # type: ignore[no-untyped-call]
    return result


@torch.compiler.disable
def gather(part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Join the parts of all ranks along `dim` in rank order; backward sums the gradients and splits them."""
    result: Tensor = _Gather.apply(part, dim, group)  # type: ignore[no-untyped-call]
    return result
