"""Expert parallelism: each ep rank holds some whole experts of every layer, and tokens travel to them (GShard,
arXiv 2006.16668; without capacity limits: no token is dropped).

    route ─▶ sort by expert ─▶ all-to-all of counts, then of tokens ─▶ grouped matrix products ─▶ all-to-all back ─▶ sum
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.measuring.observation import local_part
from trainer.parallel.collectives import all_to_all


def apply_experts(layers: list[nn.Module], ep: DeviceMesh | None) -> None:
    """Puts `Experts` in the place of transformers' in every layer that has some."""
    for layer in layers:
        if hasattr(layer.mlp, "experts"):
            assert ep is not None
            layer.mlp.experts = Experts(layer.mlp.experts, ep)


class Experts(nn.Module):
    """transformers' fused experts: gate_up_proj [expert, 2 x intermediate, hidden], down_proj [expert, hidden,
    intermediate], of which this rank holds experts / ep, one after the other."""

    def __init__(self, whole: nn.Module, ep: DeviceMesh) -> None:
        super().__init__()
        self.experts: int = whole.num_experts
        self.activation = whole.act_fn
        self.ranks = ep.size()
        self.group = ep.get_group()
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(whole, name)
            part = weight.data
            if self.ranks > 1:
                part = distribute_tensor(part, ep, [Shard(0)], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(part, requires_grad=weight.requires_grad))

    @torch.compiler.disable
    def forward(self, tokens: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Sum over each token's experts, weighted.

        Args:
            tokens: [token, hidden] of this rank.
            chosen: int64 [token, k], experts.
            shares: [token, k], their weights.
        """
        k = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)
        origin = order // k
        sent = torch.bincount(chosen.flatten(), minlength=self.experts)
        answer = self._compute if self.ranks == 1 else self._travel
        answered = answer(tokens[origin], sent)
        weighted = answered * shares.flatten()[order, None].to(answered.dtype)
        return torch.zeros_like(tokens).index_add(0, origin, weighted.to(tokens.dtype))

    def _travel(self, rows: Tensor, sent: Tensor) -> Tensor:
        """Rows sorted by expert -> their answers in the same order, from the ranks that hold the experts."""
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=self.group)
        got = got.view(self.ranks, -1)  # [from rank, expert of mine]
        given: list[int] = sent.view(self.ranks, -1).sum(1).tolist()
        taken: list[int] = got.sum(1).tolist()
        arrived = all_to_all(rows, self.group, given, taken)
        mine = torch.arange(got.shape[1], device=rows.device).repeat(self.ranks)
        by_expert = mine.repeat_interleave(got.flatten()).argsort(stable=True)
        computed = self._compute(arrived[by_expert], got.sum(0))
        answers = torch.zeros_like(computed).index_copy(0, by_expert, computed)
        return all_to_all(answers, self.group, taken, given)

    def _compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert of this rank, `counts` of each; an expert without any still gets a gradient of zero."""
        gate_up, down = local_part(self.gate_up_proj), local_part(self.down_proj)
        if torch.is_autocast_enabled(rows.device.type):  # it does not know grouped_mm
            dtype = torch.get_autocast_dtype(rows.device.type)
            rows, gate_up, down = rows.to(dtype), gate_up.to(dtype), down.to(dtype)
        ends = counts.cumsum(0).to(torch.int32)
        gate, value = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=1)
        inner = self.activation(gate) * value
        return F.grouped_mm(inner, down.transpose(1, 2), offs=ends)
