"""The order in which one rank of a pipeline does its forward and backward passes.

It is that of torch's schedules, which the trainer runs (trainer/parallel/pipeline.py): after the start, 1f1b begins with
a backward pass; the interleaved schedule with a forward pass.
"""

from __future__ import annotations

from typing import NamedTuple

from stratlab_spec.models.decoder import VIRTUAL_STAGES


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage. `chunk`: which of the rank's stages."""

    backward: bool
    chunk: int
    micro_batch: int


def order_passes(schedule: str, rank: int, ranks: int, micro_batches: int) -> list[Pass]:
    """Return all passes of one step of a rank.

    The interleaved schedule needs a number of micro-batches that its rounds divide.
    """
    chunks = VIRTUAL_STAGES[schedule]
    total = chunks * micro_batches
    if schedule == "gpipe":
        waiting, per_round = total, micro_batches
    elif schedule == "1f1b":
        waiting, per_round = min(total, ranks - rank), micro_batches
    else:
        rounds = max(1, micro_batches // ranks)
        assert micro_batches % rounds == 0, f"{micro_batches} micro-batches in {rounds} rounds"
        per_round = micro_batches // rounds
        waiting = min(total, (chunks - 1) * per_round + 2 * (ranks - 1 - rank))
    forwards = [_place(step, chunks, per_round, backward=False) for step in range(total)]
    backwards = [_place(step, chunks, per_round, backward=True) for step in range(total)]
    found = forwards[:waiting]
    for step, forward in enumerate(forwards[waiting:]):
        pair = (forward, backwards[step])
        found += pair if chunks > 1 else reversed(pair)
    return found + backwards[total - waiting :]


def _place(step: int, chunks: int, per_round: int, backward: bool) -> Pass:
    """Return the pass of a step: rounds of `per_round` micro-batches, within a round chunk by chunk."""
    round_, within = divmod(step, chunks * per_round)
    chunk, micro_batch = divmod(within, per_round)
    return Pass(backward, chunks - 1 - chunk if backward else chunk, round_ * per_round + micro_batch)
