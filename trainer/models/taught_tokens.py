"""The loss of a student beside its labels, of a chunk of tokens: the teacher's logits are made and used chunk by chunk.

    teacher's states ─▶ its logits ─┐
    student's logits ───────────────┴─▶ losses, and in the place of the student's logits their gradient

Where tp ranks share the vocabulary each makes the teacher's logits of its own words alone; the two all-reduces of the
loss carry a few more numbers per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.data.batches import IGNORED


@dataclass(frozen=True, eq=False)
class TaughtStates:
    """What a teacher's logits of the same tokens are made of (trainer/models/teacher.py), and what it counts."""

    states: Tensor
    """[row, token, the teacher's hidden], without a gradient."""
    weight: Tensor
    """Of its whole head [word, the teacher's hidden]."""
    temperature: float
    share: float
    """Of the loss that is the distance to the teacher."""

    def largest_gradient(self) -> float:
        """No element of the logits' gradient is larger, of one token."""
        return 1 - self.share + self.share * self.temperature


class Lesson:
    """The teacher's logits of some tokens, for the words of this rank.

    Args:
        words: of this rank.
        dtype: of products.
    """

    def __init__(
        self, taught: TaughtStates, group: dist.ProcessGroup | None, words: int, dtype: torch.dtype
    ) -> None:
        first, ranks = (group.rank() * words, group.size()) if group else (0, 1)
        assert len(taught.weight) == words * ranks, "teacher and student have the same words"
        self._states = taught.states.flatten(0, -2)
        self._weight = taught.weight[first : first + words].to(dtype)
        self._dtype = dtype
        self.temperature, self.share = taught.temperature, taught.share

    def logits(self, at: slice) -> Tensor:
        """[token, words of this rank]."""
        return self._states[at].to(self._dtype) @ self._weight.T


def score_taught(
    logits: Tensor,
    labels: Tensor,
    group: dist.ProcessGroup | None,
    smoothing: float,
    unit: float,
    wanted: Tensor,
    temperature: float,
    share: float,
) -> Tensor:
    """(1 - share) x the labels' loss, as without a teacher, + share x T^2 KL(teacher || student) at temperature T.

    With softmaxes q of the logits, p and t of student and teacher at T, the logits' gradient is
    (1 - share) (q - labels) + share T (p - t).

    Args:
        logits: [token, words of this rank]; overwritten with the gradient.
        labels: int64 [token].
        group: ranks that share the words.
        unit: factor of the gradient; 0 = the logits stay as they are.
        wanted: the teacher's logits [token, words of this rank]; they are overwritten.

    Returns:
        The sum over the tokens that count, fp32.
    """
    ranks, rank = (group.size(), group.rank()) if group else (1, 0)
    trains, width = unit > 0, logits.shape[1]
    counts = labels != IGNORED
    column = labels - rank * width
    mine = counts & (column >= 0) & (column < width)
    column = column.clamp(0, width - 1)[:, None]
    ours, theirs = logits.float(), wanted.float()
    peaks = torch.stack([ours.amax(1), theirs.amax(1)])
    if group:
        dist.all_reduce(peaks, dist.ReduceOp.MAX, group=group)
    lowered = ours.sub_(peaks[0][:, None]) if trains else ours - peaks[0][:, None]
    softer = lowered / temperature
    apart = theirs.sub_(peaks[1][:, None]).div_(temperature)
    softer_theirs = apart.exp()
    # of exp, of the label's logit, of all logits; at temperature T of exp, ours and theirs, of theirs x distance
    sums = peaks.new_zeros(6, len(labels))
    sums[1] = torch.where(mine, lowered.gather(1, column).squeeze(1), 0.0)
    if smoothing:
        sums[2] = lowered.sum(1)
    sums[5] = apart.sub_(softer).mul_(softer_theirs).sum(1)
    sums[0] = lowered.exp_().sum(1)
    sums[3] = softer.exp_().sum(1)
    sums[4] = softer_theirs.sum(1)
    if group:
        dist.all_reduce(sums, group=group)
    words = width * ranks
    hard, soft = counts * (1.0 - share), counts * (share * temperature)
    if trains:
        lowered *= (hard / sums[0])[:, None]
        if smoothing:
            lowered -= (hard * (smoothing / words))[:, None]
        lowered.scatter_add_(1, column, (mine * (smoothing - 1.0) * (1.0 - share))[:, None])
        lowered += softer.mul_((soft / sums[3])[:, None])
        lowered -= softer_theirs.mul_((soft / sums[4])[:, None])
        if logits.dtype != torch.float32:
            logits.copy_(lowered if unit == 1.0 else lowered.mul_(unit))
    of_labels = sums[0].log() - (1 - smoothing) * sums[1] - smoothing / words * sums[2]
    distance = sums[5] / sums[4] - sums[4].log() + sums[3].log()
    losses = (1 - share) * of_labels + share * temperature**2 * distance
    return torch.where(counts, losses, 0.0).sum()
