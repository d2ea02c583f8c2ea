"""Expert parallelism: each ep rank holds some whole experts of every layer, and tokens travel to them.

This is GShard (arXiv 2006.16668) without capacity limits: every token is processed.

    route ─▶ sort by expert ─▶ all-to-all of counts, then of tokens and their weights
          ─▶ weighted answers of trainer/models/experts.py ─▶ all-to-all back ─▶ sum

The host needs the number of rows per destination. So it waits once per layer of a forward pass, for both directions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.measuring.held_tensors import local_part
from trainer.models.experts import Experts, add_answers, answer_tokens, sort_by_expert
from trainer.models.mixed_precision import EXPERTS, cast_to_products
from trainer.parallel.collectives import all_to_all


def apply_experts(layers: list[nn.Module], ep: DeviceMesh | None) -> None:
    """Distribute each layer's experts over the ranks of `ep`, in place; an axis of size one changes nothing."""
    for layer in layers:
        if ep is not None and ep.size() > 1 and hasattr(layer.mlp, "experts"):
            layer.mlp.experts = TravellingExperts(layer.mlp.experts, ep)


class TravellingExperts(Experts):
    """Experts of which this rank holds experts / ep consecutive ones.

    Args:
        whole: all experts.
    """

    def __init__(self, whole: Experts, ep: DeviceMesh) -> None:
        nn.Module.__init__(self)
        self.experts = whole.experts
        self.group = ep.get_group()
        for name in EXPERTS:
            weight = getattr(whole, name)
            part = distribute_tensor(weight.data, ep, [Shard(0)], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(part, requires_grad=weight.requires_grad))

    @torch.compiler.disable
    def forward(self, tokens: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Run `Experts.forward` for the tokens of this rank."""
        tokens = cast_to_products(tokens)
        order, places, ends = sort_by_expert(chosen, self.experts)
        sent = ends.diff(prepend=ends.new_zeros(1)).view(self.group.size(), -1)  # [to rank, its expert]
        got = torch.empty_like(sent)  # [from rank, this rank's expert]
        dist.all_to_all_single(got, sent, group=self.group)
        counts = torch.stack([sent.sum(1), got.sum(1)]).tolist()  # the only wait, for both directions
        given, taken = read_splits(counts, len(order))
        rows: Tensor = _Spread.apply(tokens, order, places)  # type: ignore[no-untyped-call]
        arrived = all_to_all(rows, self.group, given, taken)
        weights = all_to_all(shares.flatten()[order], self.group, given, taken)
        mine = torch.arange(got.shape[1], device=got.device).repeat(self.group.size())
        names = mine.repeat_interleave(got.flatten(), output_size=sum(taken))
        gate_up, down = local_part(self.gate_up_proj), local_part(self.down_proj)
        answers = answer_tokens(arrived, names[:, None], weights[:, None], gate_up, down)
        returned = all_to_all(answers, self.group, taken, given)
        found: Tensor = _Sum.apply(returned, order, places)  # type: ignore[no-untyped-call]
        return found


def read_splits(counts: list[list[int]], rows: int) -> list[list[int]]:
    """Return the rows for each rank and from each rank.

    Args:
        counts: the counts as read from the device. A memory count has no device and replaces this function.
        rows: rows that this rank sends.
    """
    assert sum(counts[0]) == rows
    return counts


class _Spread(torch.autograd.Function):
    """[token, hidden] -> [token x k, hidden], sorted by expert; backward only needs the order."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return tokens[order // places.shape[1]]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return add_answers(gradients[0], ctx.saved_tensors[0]), None, None


class _Sum(torch.autograd.Function):
    """The reverse of `_Spread`: the sum of each token's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        ctx.k = places.shape[1]
        return add_answers(rows, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.saved_tensors[0] // ctx.k], None, None
