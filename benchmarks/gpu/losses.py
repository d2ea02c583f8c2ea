"""Cross-entropy behind a large head: plain, and in chunks of tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _ChunkedLoss(torch.autograd.Function):
    """The gradients are formed in the forward pass, so that only one chunk's logits are ever there."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, labels: Tensor, chunks: int) -> Tensor:
        grad_states = torch.empty_like(states)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        total = torch.zeros((), device=states.device)
        parts = zip(states.chunk(chunks), labels.chunk(chunks), grad_states.chunk(chunks), strict=True)
        for rows, label, into in parts:
            logits = (rows @ weight.T).float()
            log_sum = torch.logsumexp(logits, -1)
            valid = label >= 0
            index = label.clamp_min(0)[:, None]
            total += ((log_sum - logits.gather(1, index)[:, 0]) * valid).sum()
            probability = logits.sub_(log_sum[:, None]).exp_()
            probability.scatter_add_(1, index, torch.full_like(index, -1, dtype=torch.float32))
            probability *= valid[:, None]
            small = probability.to(states.dtype)
            into.copy_(small @ weight)
            grad_weight += small.T @ rows
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        grad_states, grad_weight = ctx.saved_tensors
        scaled = grad_states * upstream.to(grad_states.dtype)
        return scaled, (grad_weight * upstream).to(ctx.dtype), None, None


def chunked_loss(states: Tensor, weight: Tensor, labels: Tensor, chunks: int) -> Tensor:
    """Sum of the losses of the labels from 0 on.

    Args:
        states: [token, hidden]. weight: [class, hidden]. labels: int64 [token], -100 = none.
    """
    loss: Tensor = _ChunkedLoss.apply(states, weight, labels, chunks)
    return loss


def plain_loss(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same with all logits at once, as `trainer.models.learner.sum_losses` does."""
    return F.cross_entropy((states @ weight.T).float(), labels, ignore_index=-100, reduction="sum")


def draw_case(device: str, tokens: int, hidden: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """States, weight and labels, three of ten without a label; bf16, seeded."""
    torch.manual_seed(1)
    states = torch.randn(tokens, hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, hidden, device=device, dtype=torch.bfloat16).mul_(0.02).requires_grad_()
    labels = torch.randint(0, classes, (tokens,), device=device)
    labels[torch.rand(tokens, device=device) < 0.3] = -100
    return states, weight, labels
