"""Seconds of a pipeline's step: every rank does its passes in their order, each as soon as its input is there.

The stages may be unequal: no formula holds for them. A rank with two stages (interleaved1f1b) has stage `rank` and
stage `rank + ranks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from stratlab_spec.layout.pipeline_passes import Pass, order_passes
from stratlab_spec.models.decoder import VIRTUAL_STAGES


class PipelineTime(NamedTuple):
    """`seconds`: until the last rank has done its last pass. `busy`: seconds of passes, of each rank."""

    seconds: float
    busy: Sequence[float]

    @property
    def bubbles(self) -> list[float]:
        """Return the seconds that each rank waits."""
        return [self.seconds - busy for busy in self.busy]


def simulate_pipeline(
    schedule: str,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    micro_batches: int,
    send_s: Sequence[float] | float = 0.0,
) -> PipelineTime:
    """Return the time of all micro-batches.

    Args:
        forward_s: of one micro-batch in each stage.
        send_s: between each stage and the next one, in both directions; the sender goes on meanwhile.
    """
    stages = len(forward_s)
    ranks = stages // VIRTUAL_STAGES[schedule]
    sends = [send_s] * stages if isinstance(send_s, float | int) else [*send_s, 0.0]
    orders = [_order(schedule, rank, ranks, micro_batches) for rank in range(ranks)]
    ready: list[list[float | None]] = [[0.0] * micro_batches] + [
        [None] * micro_batches for _ in range(2 * stages)
    ]
    at, clock = [0] * ranks, [0.0] * ranks
    waiting = list(range(ranks))
    while waiting:
        moved = False
        for rank in waiting:
            order, place, now = orders[rank], at[rank], clock[rank]
            while place < len(order):
                backward, chunk, micro_batch = order[place]
                stage = chunk * ranks + rank
                # `ready` has the inputs of all forward passes, then those of the backward passes from the last stage
                row = 2 * stages - 1 - stage if backward else stage
                arrived = ready[row][micro_batch]
                if arrived is None:
                    break
                now = max(now, arrived) + (backward_s if backward else forward_s)[stage]
                between = sends[stage - 1] if backward else sends[stage]
                turns = not backward and stage == stages - 1
                ready[row + 1][micro_batch] = now if turns else now + between
                place += 1
            moved |= place > at[rank]
            at[rank], clock[rank] = place, now
        assert moved, f"{schedule} waits for itself with {micro_batches} micro-batches"
        waiting = [rank for rank in waiting if at[rank] < len(orders[rank])]
    busy = [
        micro_batches * sum(forward_s[stage] + backward_s[stage] for stage in range(rank, stages, ranks))
        for rank in range(ranks)
    ]
    return PipelineTime(max(clock), busy)


@cache
def _order(schedule: str, rank: int, ranks: int, micro_batches: int) -> tuple[Pass, ...]:
    return tuple(order_passes(schedule, rank, ranks, micro_batches))
