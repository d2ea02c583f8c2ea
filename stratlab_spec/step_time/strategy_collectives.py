"""Collectives of a step under each strategy, from the weights of its segments.

    strategy       forward                 backward                                after the last micro-batch
    ddp                                    all-reduce of fp32 gradients (last one)
    fsdp, hsdp     all-gather a block      all-gather again, reduce-scatter fp32   hsdp: all-reduce of shards
    zero1, zero2                           all-reduce of fp32 gradients            all-gather of fp32 weights
    zero3, zeropp  all-gather a module     all-gather again, reduce-scatter fp32   all-gather of small weights

Gathers of products' weights move 16 bits, in fp32 32. A span's collectives are one message per block; that of a bucket
begins when it is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from stratlab_spec.step_time.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Links,
    RankGroup,
    collective_seconds,
)

FP32, HALF = 4, 2
DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES = 2**20, 25 * 2**20
BUCKETED = ("ddp", "zero1", "zero2")
"""Strategies that reduce gradients in buckets that span blocks."""


@dataclass(frozen=True)
class Transfers:
    """Seconds of a span's collectives."""

    needs_s: float = 0.0
    """Before the span."""
    sends_s: float = 0.0
    """After it."""


@dataclass(frozen=True)
class StrategyCollectives:
    """Return the collectives of spans.

    Args:
        elements: of all weights of `start`, each `layer` and `head`: what gathers move.
        trained: the same of those with gradients: what reductions move.
        shards: ranks that share one copy of what is sharded; `replicas`: groups with equal shards.
        bucket_bytes: of reductions.
        copy_bytes_per_s: of the GPU: read and written bytes.
        whole_weights: their sizes, of those that stage 3 keeps whole and gathers after the update, one by one.
        gathered_bytes: of an element of a gathered product's weight.
    """

    strategy: str
    elements: Mapping[str, int]
    trained: Mapping[str, int]
    shards: int
    replicas: int
    per_node: int
    links: Links
    bucket_bytes: int
    copy_bytes_per_s: float
    whole_weights: Sequence[int] = ()
    gathered_bytes: int = HALF

    @property
    def _inner(self) -> RankGroup:
        return RankGroup(self.shards, min(self.shards, self.per_node))

    @property
    def _whole(self) -> RankGroup:
        ranks = self.shards * self.replicas
        return RankGroup(ranks, min(ranks, self.per_node))

    def _seconds(self, kind: str, size_bytes: float, group: RankGroup, bucket_bytes: float = 0) -> float:
        if group.ranks == 1:  # NCCL copies the tensor
            return 2 * size_bytes / self.copy_bytes_per_s
        messages = ceil(size_bytes / bucket_bytes) if bucket_bytes else 1
        return messages * collective_seconds(kind, size_bytes / max(1, messages), group, self.links)

    def span(self, place: str, phase: str, completes: bool) -> Transfers:
        """Return what a segment needs before, and sends after.

        Args:
            completes: it is the last micro-batch of a step.
        """
        elements, trained = (one.get(place, one.get("layer", 0)) for one in (self.elements, self.trained))
        if self.strategy in ("fsdp", "hsdp", "zero3", "zeropp"):
            return self._gather_and_reduce(place, phase, completes, elements, trained)
        return Transfers()

    def fill_buckets(self, places: Sequence[str], completes: bool) -> list[float]:
        """Return the seconds of the reductions that begin after each span of a backward pass.

        Args:
            places: of the spans, in their order.
        """
        if self.strategy not in BUCKETED or not (completes or self.strategy == "zero2"):
            return [0.0] * len(places)
        ddp = self.strategy == "ddp"
        room = min(DDP_FIRST_BUCKET_BYTES, self.bucket_bytes) if ddp else self.bucket_bytes
        waiting, found = 0.0, []
        for number, place in enumerate(places, 1):
            waiting += FP32 * self.trained.get(place, self.trained.get("layer", 0))
            seconds = 0.0
            while waiting >= room or (waiting and number == len(places)):
                sent = min(waiting, room)
                seconds += self._seconds(ALL_REDUCE, sent, self._whole)
                waiting, room = waiting - sent, self.bucket_bytes
            found.append(seconds)
        return found

    def _gather_and_reduce(
        self, place: str, phase: str, completes: bool, elements: int, trained: int
    ) -> Transfers:
        group = self._inner if self.strategy in ("fsdp", "hsdp") else self._whole
        gathers = group
        if self.strategy == "zeropp" and phase == "backward":
            gathers = RankGroup(min(group.ranks, self.per_node), min(group.ranks, self.per_node))
        needs = self._seconds(ALL_GATHER, self.gathered_bytes * elements, gathers)
        if phase == "forward":
            return Transfers(needs)
        sends = self._seconds(REDUCE_SCATTER, FP32 * trained, group)
        if self.strategy == "hsdp" and completes:
            across = RankGroup(self.replicas, max(1, self.per_node // self.shards))
            sends += self._seconds(ALL_REDUCE, FP32 * trained / self.shards, across)
        return Transfers(0.0 if place == "head" else needs, sends)

    def update(self, trained_elements: int) -> float:
        """Return the seconds of the collectives of the optimizer's step."""
        if self.strategy in ("zero1", "zero2"):
            return self._seconds(ALL_GATHER, FP32 * trained_elements, self._whole, self.bucket_bytes)
        return sum(self._seconds(ALL_GATHER, FP32 * elements, self._whole) for elements in self.whole_weights)
