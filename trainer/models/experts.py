"""Run a mixture of experts with one grouped product for all experts, the same under every strategy.

    tokens ─▶ rows sorted by expert ─▶ gate, up ─▶ silu(gate) up ─▶ down ─▶ weighted sum of each token's answers

`Router` chooses the experts of each token, `Experts` computes their answers. The host never waits for the device: the
number of rows per expert stays there. The backward pass keeps the tokens unchanged and the output of the first product.
Rows and 16-bit copies of weights are rebuilt; answers are not needed. The gradient of an answer's weight is
<gradient, answer>. It is computed before the second product as <down^T gradient, inner>.

torch 2.13 has a grouped kernel only for bf16 on compute capability 9.0 or 10.0. Its fallback reads the counts and
computes one product per expert.

The router computes in fp32 under every precision, because a choice has no small errors. If two experts score nearly
alike, the last bit of a 16-bit logit sends the token and its whole answer elsewhere. The input has the element type of
the stream. The exception is bf16_native, which rounds the router's weight to bf16 before this module.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.mixed_precision import EXPERTS, cast_to_products


class Router(nn.Module):
    """transformers' router (Qwen3MoeTopKRouter, MixtralTopKRouter), computed in fp32.

    Args:
        given: the router of transformers; provides the weight [expert, hidden].
    """

    weight: nn.Parameter

    def __init__(self, given: nn.Module) -> None:
        super().__init__()
        self.k: int = given.top_k  # type: ignore[assignment]
        self.scales: bool = getattr(given, "norm_topk_prob", True)  # Mixtral's always scales
        self.register_parameter("weight", given.weight)  # type: ignore[arg-type]

    def forward(self, stream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[.., hidden] -> (logits fp32 [token, expert], shares fp32 [token, k], chosen int64 [token, k])."""
        tokens = stream.flatten(0, -2)
        logits: Tensor = _Logits.apply(tokens, self.weight)  # type: ignore[no-untyped-call]
        chosen = self.choose(logits)
        shares = logits.softmax(1).gather(1, chosen)
        if self.scales:
            shares = shares / shares.sum(1, keepdim=True)
        return logits, shares, chosen

    def choose(self, logits: Tensor) -> Tensor:
        """Return the k experts with the largest logits: int64 [token, k]."""
        return logits.detach().topk(self.k, dim=1).indices


class _Logits(torch.autograd.Function):
    """Keep the tokens unchanged; autograd would keep them in fp32."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, weight)
        with torch.autocast(tokens.device.type, enabled=False):
            return tokens.float() @ weight.float().T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight = ctx.saved_tensors
        of_tokens = of_weight = None
        if ctx.needs_input_grad[0]:
            of_tokens = (gradients[0] @ weight.float()).to(tokens.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (gradients[0].T @ tokens.float()).to(weight.dtype)
        return of_tokens, of_weight


class Experts(nn.Module):
    """transformers' fused experts (Qwen3MoeExperts) with silu.

    The weights are gate_up_proj [expert, 2 x intermediate, hidden] and down_proj [expert, hidden, intermediate].

    Args:
        given: the experts of transformers; their parameters keep their names.
    """

    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter

    def __init__(self, given: nn.Module) -> None:
        super().__init__()
        self.experts: int = given.num_experts  # type: ignore[assignment]
        for name in EXPERTS:
            self.register_parameter(name, getattr(given, name))

    @torch.compiler.disable
    def forward(self, tokens: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Return the weighted sum over each token's experts: [token, hidden], under autocast in its element type.

        Args:
            tokens: [token, hidden].
            chosen: int64 [token, k], experts.
            shares: fp32 [token, k], their weights.
        """
        return answer_tokens(cast_to_products(tokens), chosen, shares, self.gate_up_proj, self.down_proj)


def answer_tokens(tokens: Tensor, chosen: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Compute `Experts.forward` with explicit weights; products use the element type of the tokens.

    An expert without tokens gets a gradient of zero.
    """
    order, places, ends = sort_by_expert(chosen, len(gate_up))
    found: Tensor = _Answers.apply(tokens, shares, gate_up, down, order, places, ends)  # type: ignore[no-untyped-call]
    return found


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the choices int64 [token, k] by expert and return (order, places, ends).

    Returns:
        order: int64 [token x k], for each sorted row its place in `chosen`, flat.
        places: int64 [token, k], for each place in `chosen` its sorted row.
        ends: int32 [experts], the end of each expert's rows.
    """
    names, order = chosen.flatten().sort(stable=True)
    rows = torch.arange(len(order), device=order.device)
    places = torch.empty_like(order).scatter_(0, order, rows).view_as(chosen)
    ends = torch.searchsorted(names, torch.arange(experts, device=names.device), right=True, out_int32=True)
    return order, places, ends


def add_answers(answers: Tensor, places: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return the weighted sum of each token's rows, in fp32 and in a fixed order: [row, n] -> [token, n].

    Args:
        places: int64 [token, k], rows.
        shares: fp32 [token, k]; None = 1.
    """
    k = places.shape[1]
    if k == 1 and shares is None:
        return answers[places[:, 0]]
    total = answers.new_zeros((len(places), answers.shape[1]), dtype=torch.float32)
    for i in range(k):
        row = answers[places[:, i]]
        total = total.add_(row) if shares is None else total.addcmul_(row, shares[:, i, None])
    return total.to(answers.dtype)


class _Answers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        shares: Tensor,
        gate_up: Tensor,
        down: Tensor,
        order: Tensor,
        places: Tensor,
        ends: Tensor,
    ) -> Tensor:
        rows, dtype = tokens[_origin(order, places)], tokens.dtype
        entered = F.grouped_mm(rows, gate_up.to(dtype).transpose(1, 2), offs=ends)
        del rows
        gate, value = entered.chunk(2, dim=1)
        answers = F.grouped_mm(F.silu(gate) * value, down.to(dtype).transpose(1, 2), offs=ends)
        ctx.save_for_backward(tokens, shares, gate_up, down, order, places, ends, entered)
        return add_answers(answers, places, shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tokens, shares, gate_up, down, order, places, ends, entered = ctx.saved_tensors
        dtype, origin = tokens.dtype, _origin(order, places)
        weights = shares.flatten()[order, None]
        gate, value = entered.chunk(2, dim=1)
        opened = F.silu(gate)
        inner = opened * value
        of_answers = gradients[0].to(dtype)[origin]  # not weighted yet
        of_inner = F.grouped_mm(of_answers, down.to(dtype), offs=ends)
        of_shares = of_down = of_gate_up = of_tokens = None
        if ctx.needs_input_grad[1]:
            of_shares = (of_inner.float() * inner).sum(1)[places]
        if ctx.needs_input_grad[3]:
            of_down = F.grouped_mm(of_answers.T, inner.mul_(weights), offs=ends).to(down.dtype)
        del of_answers, inner
        of_inner = of_inner.mul_(weights)
        of_gate = torch.ops.aten.silu_backward(of_inner * value, gate)
        of_entered = torch.cat([of_gate, of_inner.mul_(opened)], 1)
        del of_gate, of_inner, opened
        if ctx.needs_input_grad[2]:
            of_gate_up = F.grouped_mm(of_entered.T, tokens[origin], offs=ends).to(gate_up.dtype)
        if ctx.needs_input_grad[0]:
            of_rows = F.grouped_mm(of_entered, gate_up.to(dtype), offs=ends)
            of_tokens = add_answers(of_rows, places)
        return of_tokens, of_shares, of_gate_up, of_down, None, None, None


def _origin(order: Tensor, places: Tensor) -> Tensor:
    """Return the token of each sorted row."""
    return order // places.shape[1]
