"""Cross-entropy over a vocabulary that tp ranks share: no rank ever holds the logits of all words.

Two all-reduces of a few numbers per token, the largest logit and the sums, as in Megatron-LM (arXiv 1909.08053,
section 3). The probabilities are not kept but computed again, some rows at a time: with 152 000 words they would
take more memory than anything else.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.data.batches import IGNORED
from trainer.models.learner import TokenLoss

ROWS_AT_ONCE = 2048


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, group: dist.ProcessGroup | None
    ) -> Tensor:
        ranks, rank = (group.size(), group.rank()) if group else (1, 0)
        width = logits.shape[1]
        words = width * ranks
        counts = labels != IGNORED
        column = labels - rank * width
        mine = counts & (column >= 0) & (column < width)
        column = column.clamp(0, width - 1)
        peak = logits.amax(1).float()
        if group:
            dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
        sums = peak.new_empty(3, len(peak))  # of exp, of the label's logit, of all logits
        for at in _some_rows(logits):
            lowered = logits[at].float() - peak[at, None]
            picked = lowered.gather(1, column[at, None]).squeeze(1)
            sums[1, at] = torch.where(mine[at], picked, 0.0)
            sums[2, at] = lowered.sum(1) if smoothing else 0.0
            sums[0, at] = lowered.exp_().sum(1)
        if group:
            dist.all_reduce(sums, group=group)
        log_total = sums[0].log()
        losses = log_total - (1 - smoothing) * sums[1] - smoothing / words * sums[2]
        ctx.save_for_backward(logits, peak + log_total, column, mine, counts)
        ctx.smoothing, ctx.words = smoothing, words
        return torch.where(counts, losses, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logits, normaliser, column, mine, counts = ctx.saved_tensors
        result = torch.empty_like(logits)
        for at in _some_rows(logits):
            share = (logits[at].float() - normaliser[at, None]).exp_()
            if ctx.smoothing:
                share -= ctx.smoothing / ctx.words
            hit = mine[at].to(share.dtype) * (1 - ctx.smoothing)
            share.scatter_add_(1, column[at, None], -hit[:, None])
            result[at] = share.mul_(torch.where(counts[at], gradients[0], 0.0)[:, None])
        return result, None, None, None


def _some_rows(logits: Tensor) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(logits), ROWS_AT_ONCE)]


def token_loss(
    logits: Tensor, labels: Tensor, group: dist.ProcessGroup | None, smoothing: float = 0.0
) -> Tensor:
    """Sum of the tokens' losses, fp32, equal on every rank of `group`.

    Args:
        logits: [..., words of this rank]: rank i of the group has the i-th of equal parts of the vocabulary.
        labels: int64 [...], of the whole vocabulary, or IGNORED.
        group: the tp ranks; None = the logits are whole.
    """
    found: Tensor = _CrossEntropy.apply(logits.flatten(0, -2), labels.flatten(), smoothing, group)  # type: ignore[no-untyped-call]
    return found


class SplitTokenLoss(TokenLoss):
    """The loss of a language model whose vocabulary the ranks of `group` share; None = the logits are whole."""

    def __init__(self, smoothing: float, group: dist.ProcessGroup | None) -> None:
        super().__init__(smoothing)
        self._group = group

    def forward(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """As `TokenLoss`; equal on every rank of the group."""
        loss = token_loss(logits, labels, self._group, self.smoothing if self.training else 0.0)
        return loss, self.measure(labels)
