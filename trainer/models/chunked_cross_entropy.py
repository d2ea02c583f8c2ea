"""Compute a language model's loss from the states before its head, chunk by chunk.

    some tokens' states ─▶ logits ─▶ losses, and in the place of the logits their gradient ─▶ gradients of states, head

Memory never holds more than one chunk of logits. The forward pass forms the gradients, so each product is computed
once; backward only scales them. This works because the sum of the losses has one factor for all tokens. fp16's loss
scale arrives in backward, after the rounding here. So the fp16 gradient of the logits has its own factor, and its
products return fp32. With one chunk of 2048 tokens, summing the head's gradient in fp32 takes a tenth of the
products' time on an H100. Smaller chunks take less memory and more time.

If tp ranks share the vocabulary, each rank holds only its own words' logits. Two all-reduces of a few numbers per token
exchange the largest logit and the sums, as in Megatron-LM (arXiv 1909.08053, section 3).

With a teacher (trainer/models/teacher.py) its logits too are computed and used chunk by chunk. Under tp each rank
computes only its own words' logits, and the two all-reduces carry a few more numbers per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from trainer.data.text.token_rows import IGNORED


@dataclass(frozen=True, eq=False)
class TaughtStates:
    """Inputs of a teacher's logits for the same tokens (trainer/models/teacher.py), and its share of the loss."""

    states: Tensor
    """[row, token, the teacher's hidden], without a gradient."""
    weight: Tensor
    """Weight of the teacher's whole head [word, the teacher's hidden]."""
    temperature: float
    share: float
    """Share of the loss that is the distance to the teacher."""
    cap: float = 0.0
    """Soft cap of the teacher's logits; 0 = none."""

    def largest_gradient(self) -> float:
        """Return an upper bound of any element of one token's logits gradient."""
        return 1 - self.share + self.share * self.temperature


class Lesson:
    """The teacher's logits of some tokens, for the words of this rank.

    Args:
        words: number of words on this rank.
        dtype: of products.
    """

    def __init__(
        self, taught: TaughtStates, group: dist.ProcessGroup | None, words: int, dtype: torch.dtype
    ) -> None:
        first, ranks = (group.rank() * words, group.size()) if group else (0, 1)
        assert len(taught.weight) == words * ranks, "teacher and student need the same words"
        self._states = taught.states.flatten(0, -2)
        self._weight = taught.weight[first : first + words].to(dtype)
        self._dtype = dtype
        self._cap = taught.cap

    def logits(self, at: slice) -> Tensor:
        """[token, words of this rank]."""
        return cap_logits(self._states[at].to(self._dtype) @ self._weight.T, self._cap)


def cap_logits(logits: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(logits / cap), or the logits without a cap."""
    return (logits / cap).tanh() * cap if cap else logits


CHUNK_TOKENS = 2048
FP16_UNIT = 2.0**15
"""Factor of the logits' gradient in fp16 (range -1 to 1); with a vocabulary of a million words no bits are lost."""
ROWS_AT_ONCE = 256
"""Rows with probabilities in fp32 at the same time."""


class TokenLoss(nn.Module):
    """Loss of a language model. It has no parameters: the head passes its own.

    Args:
        smoothing: share of each label that is spread over all words, in training.
        chunk_tokens: tokens per chunk of logits.
        group: ranks that share the vocabulary in equal parts, rank i holds part i; None = the logits are whole.
        cap: soft cap of the logits; 0 = none.
    """

    def __init__(
        self,
        smoothing: float = 0.0,
        chunk_tokens: int = CHUNK_TOKENS,
        group: dist.ProcessGroup | None = None,
        cap: float = 0.0,
    ) -> None:
        super().__init__()
        self.cap = cap
        self.smoothing = smoothing
        self.chunk_tokens = chunk_tokens
        self.group = group

    def forward(
        self, states: Tensor, weight: Tensor, labels: Tensor, taught: TaughtStates | None = None
    ) -> Tensor:
        """Return the sum of the losses, fp32 [].

        Args:
            states: [row, token, hidden].
            weight: [word, hidden], the words of this rank.
            labels: int64 [row, token], IGNORED for tokens without a label.
            taught: for training, of the same tokens; tokens with IGNORED labels do not count here either.
        """
        smoothing = self.smoothing if self.training else 0.0
        return token_loss(states, weight, labels, self.group, smoothing, self.chunk_tokens, taught, self.cap)

    def measure(self, labels: Tensor) -> Tensor:
        """Return (number of labels that count) in evaluation, and an empty tensor in training.

        Measures over a whole vocabulary would slow training.
        """
        if self.training:
            return labels.new_empty(0)
        return (labels != IGNORED).sum()[None]


class Head(nn.Linear):
    """Map states to words. With labels it returns their loss: a sharded weight is whole only inside its forward.

    The code that builds the model sets the attribute `loss`.
    """

    loss: TokenLoss
    factor: float = 1.0
    """Of the logits, as some families scale them before the soft cap."""

    def forward(
        self, states: Tensor, labels: Tensor | None = None, taught: TaughtStates | None = None
    ) -> Tensor:
        """[row, token, hidden] -> logits [row, token, word]; with labels int64 [row, token] the sum of their losses."""
        if self.factor != 1.0:
            states = states * self.factor
        if labels is None:
            return cap_logits(F.linear(states, self.weight), self.loss.cap)
        loss: Tensor = self.loss(states, self.weight, labels, taught)
        return loss


def token_loss(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    group: dist.ProcessGroup | None = None,
    smoothing: float = 0.0,
    chunk_tokens: int = CHUNK_TOKENS,
    taught: TaughtStates | None = None,
    cap: float = 0.0,
) -> Tensor:
    """Return the sum of the tokens' losses, fp32, equal on every rank of `group`; see `TokenLoss` for the shapes.

    Under autocast the products use its element type; losses and sums always use fp32.
    """
    if isinstance(weight, DTensor):  # each rank's words contribute a partial gradient of the states
        assert isinstance(states, DTensor)
        states, weight = states.to_local(grad_placements=[Partial()]), weight.to_local()
    kind = states.device.type
    autocast = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if autocast else weight.dtype
    found: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        states.flatten(0, -2), weight, labels.flatten(), group, smoothing, chunk_tokens, dtype, taught, cap
    )
    return found


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        labels: Tensor,
        group: dist.ProcessGroup | None,
        smoothing: float,
        chunk_tokens: int,
        dtype: torch.dtype,
        taught: TaughtStates | None,
        cap: float,
    ) -> Tensor:
        trains_states, trains_weight = ctx.needs_input_grad[:2]
        trains = trains_states or trains_weight
        unit, wide = (FP16_UNIT, torch.float32) if dtype == torch.float16 else (1.0, states.dtype)
        if taught is not None and unit > 1:  # the temperature makes the logits' gradient larger than 1
            unit /= 2.0 ** math.ceil(math.log2(max(1.0, taught.largest_gradient())))
        of_states = torch.empty_like(states, dtype=wide) if trains_states else None
        of_weight: Tensor | None = None
        cast_weight = weight.to(dtype)
        lesson = None if taught is None else Lesson(taught, group, len(weight), dtype)
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            for at in _slices(len(states), chunk_tokens):
                some = states[at].to(dtype)
                logits = some @ cast_weight.T
                slope: Tensor | None = None
                if cap:
                    logits = cap_logits(logits, cap)
                    slope = 1 - (logits / cap).square() if trains else None
                # one all-reduce per chunk: many small ones would take longer than the rest of the loss
                wanted = None if lesson is None else lesson.logits(at)
                for part in _slices(len(logits), len(logits) if group else ROWS_AT_ONCE):
                    theirs: Any = ()
                    if taught is not None and wanted is not None:
                        theirs = (wanted[part], taught.temperature, taught.share)
                    total += _score(
                        logits[part], labels[at][part], group, smoothing, unit if trains else 0, *theirs
                    )
                if slope is not None:  # of the soft cap: `logits` holds its gradient now
                    logits *= slope
                if of_states is not None:
                    of_states[at] = _multiply(logits, cast_weight)
                if trains_weight:
                    of_weight = _add(of_weight, _multiply(logits.T, some), chunk_tokens >= len(states))
        ctx.save_for_backward(of_states, of_weight)
        ctx.unit, ctx.states_dtype = unit, states.dtype
        # a weight gathered in 16 bits may require an fp32 gradient (trainer/parallel/fully_shard.py)
        ctx.weight_dtype = (weight.grad_dtype if weight.is_leaf else None) or weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_weight = ctx.saved_tensors
        factor = gradients[0] / ctx.unit
        if of_states is not None:
            of_states = of_states.mul_(factor).to(ctx.states_dtype)
        if of_weight is not None:
            if of_weight.dtype != torch.float32:  # scaled in the wider of the two types
                of_weight = of_weight.to(ctx.weight_dtype)
            of_weight = of_weight.mul_(factor).to(ctx.weight_dtype)
        return of_states, of_weight, None, None, None, None, None, None, None


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b; for fp16 in fp32, because a sum over tokens or words exceeds the range of fp16."""
    if a.dtype != torch.float16:
        return a @ b
    return _multiply_into_fp32(a, b)


def _multiply_into_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in fp32; torch has such a product only for CUDA (torch 2.13)."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def _add(total: Tensor | None, more: Tensor, alone: bool) -> Tensor:
    """Add in fp32, so that the number of chunks does not change the sum; a single chunk (`alone`) stays unchanged."""
    if alone:
        return more
    return more.float() if total is None else total.add_(more)


def _slices(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, start + step)


def _score(
    logits: Tensor,
    labels: Tensor,
    group: dist.ProcessGroup | None,
    smoothing: float,
    unit: float,
    wanted: Tensor | None = None,
    temperature: float = 1.0,
    share: float = 0.0,
) -> Tensor:
    """Return the sum of the losses of the tokens that count, fp32; overwrite the logits with its gradient.

    With a teacher the loss is (1 - share) x the labels' loss + share x T^2 KL(teacher || student) at temperature T. Let
    q be the softmax of the logits, and p and t the softmaxes of student and teacher at T. The logits' gradient is (1 -
    share) (q - labels) + share T (p - t).

    Args:
        logits: [token, words of this rank].
        labels: int64 [token].
        group: ranks that share the words.
        unit: factor of the gradient; 0 = the logits stay unchanged.
        wanted: the teacher's logits [token, words of this rank], overwritten; None = no teacher.
        share: of the loss that is the distance to the teacher.
    """
    ranks, rank = (group.size(), group.rank()) if group else (1, 0)
    trains, width = unit > 0, logits.shape[1]
    words = width * ranks
    counts = labels != IGNORED
    column = labels - rank * width
    mine = counts & (column >= 0) & (column < width)
    column = column.clamp(0, width - 1)[:, None]
    both = [logits.float()] if wanted is None else [logits.float(), wanted.float()]
    peaks = torch.stack([part.amax(1) for part in both])
    if group:
        dist.all_reduce(peaks, dist.ReduceOp.MAX, group=group)
    lowered = both[0].sub_(peaks[0][:, None]) if trains else both[0] - peaks[0][:, None]
    # rows: 0 exp, 1 the label's logit, 2 all logits; at temperature T: 3 the student's exp, 4 the teacher's, 5 its
    # distance
    sums = peaks.new_zeros(3 * len(both), len(labels))
    sums[1] = torch.where(mine, lowered.gather(1, column).squeeze(1), 0.0)
    if smoothing:
        sums[2] = lowered.sum(1)
    if wanted is not None:
        softer = lowered / temperature
        apart = both[1].sub_(peaks[1][:, None]).div_(temperature)
        softer_theirs = apart.exp()
        sums[5] = apart.sub_(softer).mul_(softer_theirs).sum(1)
        sums[3] = softer.exp_().sum(1)
        sums[4] = softer_theirs.sum(1)
    sums[0] = lowered.exp_().sum(1)
    if group:
        dist.all_reduce(sums, group=group)
    if trains:
        hard = counts * (1.0 - share)
        lowered *= (hard / sums[0])[:, None]
        if smoothing:
            lowered -= (hard * (smoothing / words))[:, None]
        lowered.scatter_add_(1, column, (mine * (smoothing - 1.0) * (1.0 - share))[:, None])
        if wanted is not None:
            soft = counts * (share * temperature)
            lowered += softer.mul_((soft / sums[3])[:, None])
            lowered -= softer_theirs.mul_((soft / sums[4])[:, None])
        if logits.dtype != torch.float32:  # fp32 logits share memory with `lowered`
            logits.copy_(lowered if unit == 1.0 else lowered.mul_(unit))
    losses = sums[0].log() - (1 - smoothing) * sums[1] - smoothing / words * sums[2]
    if wanted is not None:
        distance = sums[5] / sums[4] - sums[4].log() + sums[3].log()
        losses = (1 - share) * losses + share * temperature**2 * distance
    return torch.where(counts, losses, 0.0).sum()
