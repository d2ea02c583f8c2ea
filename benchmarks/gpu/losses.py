"""Cross-entropy behind a large head: plain, and in chunks of tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.data.text.token_rows import IGNORED
from trainer.models.chunked_cross_entropy import token_loss


def chunked_loss(states: Tensor, weight: Tensor, labels: Tensor, chunks: int) -> Tensor:
    """The project's: sum of the losses of the labels that count.

    Args:
        states: [token, hidden]. weight: [class, hidden]. labels: int64 [token], IGNORED = none.
    """
    return token_loss(states, weight, labels, chunk_tokens=math.ceil(len(labels) / chunks))


def plain_loss(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same with all logits at once, as torch computes it."""
    return F.cross_entropy((states @ weight.T).float(), labels, ignore_index=IGNORED, reduction="sum")


def draw_case(
    device: str, tokens: int, hidden: int, classes: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    """States, weight and labels, three of ten without a label; seeded."""
    torch.manual_seed(1)
    states = torch.randn(tokens, hidden, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(classes, hidden, device=device, dtype=dtype).mul_(0.02).requires_grad_()
    labels = torch.randint(0, classes, (tokens,), device=device)
    labels[torch.rand(tokens, device=device) < 0.3] = IGNORED
    return states, weight, labels
