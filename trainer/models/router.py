"""Which experts a token goes to, decided in fp32 whatever the products are in.

A choice has no small errors: where two experts are nearly alike, the last bit of a 16-bit logit sends the token
elsewhere, and its whole answer with it. The input comes in the element type of the stream. The exception is
bf16_native, whose weight has been rounded to bf16 before it comes here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Router(nn.Module):
    """transformers' router (Qwen3MoeTopKRouter), of which it takes the weight [expert, hidden].

    Args:
        given: the router of transformers.
    """

    weight: nn.Parameter

    def __init__(self, given: nn.Module) -> None:
        super().__init__()
        self.k: int = given.top_k  # type: ignore[assignment]
        self.scales: bool = given.norm_topk_prob  # type: ignore[assignment]
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
        """The k experts with the largest logits: int64 [token, k]."""
        return logits.detach().topk(self.k, dim=1).indices


class _Logits(torch.autograd.Function):
    """Keeps the tokens as they came; autograd would keep them in fp32."""

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
