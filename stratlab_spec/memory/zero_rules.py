"""What DeepSpeed's ZeRO allocates in a step, as its engine does it (deepspeed 0.19.8, runtime/zero).

zero1, zero2    whole weights in one flat buffer; each rank updates its part of it (stage_1_and_2.py)

gradient ─▶ bucket ─▶ full: reduced through a copy ─▶ this rank's gradients ─▶ update of its part
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from stratlab_spec.memory.recording import BACKWARD, FORWARD, FP32, Weight, round_up
from stratlab_spec.memory.simulation import HeldMemory

FP64 = 8
START_ALIGNMENT = 2
"""DeepSpeed's nccl_start_alignment_factor: the flat buffer is a multiple of it on each rank."""


@dataclass
class ZeroRules:
    """zero1 and zero2.

    zero1 accumulates whole gradients and reduces those of the last micro-batch's sum; zero2 reduces each micro-batch
    and keeps this rank's gradients.

    Args:
        first, blocks, last: trained weights before the layers, of each layer, and after them, in the model's order.
        bucket_elements: of a bucket, at most the model's.
        buckets: 2 if reduction overlaps with the backward pass, else 1.
        moments: of the optimizer.
        accumulates: there are gradients of earlier micro-batches.
        completes: it is the last micro-batch.
    """

    first: Sequence[Weight]
    blocks: Sequence[Sequence[Weight]]
    last: Sequence[Weight]
    shards: int
    stage: int
    bucket_elements: int
    buckets: int
    moments: int
    accumulates: bool
    completes: bool = True
    frozen_bytes: int = 0
    """Of weights that are not trained."""
    offloads: bool = False
    """This rank's part is in host memory: master copies, moments, gradients."""
    update_copies: int = 0
    """Copies of this rank's gradients that the optimizer's step takes."""
    rank: int = 0
    copies: bool = True
    follows_products: bool = False

    def __post_init__(self) -> None:
        self._every = [*self.first, *chain.from_iterable(self.blocks), *self.last]
        self._width = self._every[0].element_bytes  # of weights, gradients and buckets
        total = sum(weight.elements for weight in self._every)
        aligned = START_ALIGNMENT * self.shards
        self._share = -(-total // aligned) * aligned // self.shards
        start, end = self.rank * self._share, (self.rank + 1) * self._share
        self._places = [0, *accumulate(weight.elements for weight in self._every)]
        self._ends = [*accumulate(map(len, self.blocks), initial=len(self.first))]  # of the layers
        self._only_sums = self.stage == 1 and not self.completes  # gradients of this micro-batch stay whole
        # reduce_gradients: zero1 without overlap has no hooks
        self._moves_late = self.stage == 1 and self.buckets == 1
        self.repeats: tuple[str, ...] = (
            (FORWARD, BACKWARD) if self._only_sums or self._moves_late else (FORWARD,)
        )
        mine = [
            weight
            for weight, at, until in zip(self._every, self._places, self._places[1:], strict=False)
            if at < end and until > start
        ]
        self._mine_bytes = round_up(self._width * sum(weight.elements for weight in mine))
        self._mine = mine
        self._largest_mine = max((min(weight.elements, self._share) for weight in mine), default=0)
        self._slices: list[list[int]] = []  # of the bucket: (rank whose part it is, elements)
        self._filled = 0  # elements of the bucket
        self._own = 0  # this rank's, of the weight in the bucket that has most of them
        self._large = 0  # bytes of a gradient above a bucket's size, which waits for its reduction
        self._late = 0  # bytes of such gradients that stay to the end of the pass
        self._partition = 0  # bytes of this rank's gradients that this pass has taken
        self._has_buckets = False
        self._waiting: list[int] = []  # weights of this segment whose gradients come

    def hold_state(self, held: HeldMemory) -> None:
        held.take("parameters", round_up(self._width * self._share * self.shards) + self.frozen_bytes)
        held.keep("master copies", round_up(FP32 * self._share), self.offloads)
        held.keep("optimizer state", self.moments * round_up(FP32 * self._share), self.offloads)
        if self.offloads:
            self._hold_offloaded(held)
        if self.accumulates and self.stage == 1:
            held.take("gradients", sum(weight.whole_bytes for weight in self._every))
            held.take("gradient buckets", self.buckets * self._bucket_bytes)  # since the first micro-batch
            self._has_buckets = True
        elif self.accumulates and not self.offloads:
            held.take("gradients", self._mine_bytes)

    def _hold_offloaded(self, held: HeldMemory) -> None:
        """Take what copies from and to the host need: room for the largest weight on both sides, and an updated part.

        zero2 sums up micro-batches in whole gradients on the host.
        """
        share = round_up(FP32 * self._share)
        largest = max(weight.whole_bytes for weight in self._every)
        held.take("other", largest)
        held.keep("other", largest + share, True)
        held.keep("gradients", share, True)
        if self.accumulates and self.stage == 2:
            whole = sum(weight.whole_bytes for weight in self._mine)
            held.keep("gradients", whole, True)

    def enter(self, held: HeldMemory, segment: str, layer: int) -> None:
        if not segment.endswith(BACKWARD):
            return
        ends = self._ends
        if layer >= 0:
            self._waiting = list(range(ends[layer], ends[layer + 1]))
        elif segment.startswith("head"):
            self._waiting = list(range(ends[-1], len(self._every)))
        else:  # a tied head's weight comes with the embedding
            self._waiting = list(range(len(self.first)))

    def leave(self, held: HeldMemory, segment: str, layer: int) -> None:
        if segment != f"start{BACKWARD}" or self._only_sums:
            return
        if self._moves_late:
            for place in range(len(self._every)):
                self._move(held, place)
        self._reduce(held)
        held.free("gradient buckets", self._has_buckets * self.buckets * self._bucket_bytes)
        self._has_buckets = False
        held.free("gradients", self._late)
        if self.accumulates and self.stage == 2:  # added to those of the earlier micro-batches
            held.free("gradient buckets", self._partition)

    @property
    def _bucket_bytes(self) -> int:
        return round_up(self._width * self.bucket_elements)

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        held.take("gradients", size)

    def complete_gradient(self, held: HeldMemory, size: int) -> None:
        if not self._has_buckets:  # setup_buckets, at the first gradient of a pass
            self._take_buckets(held, "gradient buckets")
        place = self._find_weight(size)
        if self.accumulates and self.stage == 1:  # added to the one that is moved
            held.free("gradients", size)
        if not self._moves_late and not self._only_sums:
            self._move(held, place)

    def _take_buckets(self, held: HeldMemory, cause: str) -> None:
        held.take(cause, self.buckets * self._bucket_bytes)
        self._has_buckets = True

    def _move(self, held: HeldMemory, place: int) -> None:
        """Move a gradient into the bucket, which is reduced before if it is too full."""
        elements, size = self._every[place].elements, self._every[place].whole_bytes
        if self._filled + elements > self.bucket_elements:
            self._reduce(held)
        self._filled += elements
        self._add_slices(self._places[place], elements)
        self._own = max(self._own, self._count_own(place))
        if elements > self.bucket_elements:  # it stays where it is until its reduction
            self._large = size
            if self.offloads:  # a copy of it
                held.touch("gradients", size)
        else:
            held.free("gradients", size)

    def _count_own(self, place: int) -> int:
        """Return the elements of a weight in this rank's part."""
        start, end = self.rank * self._share, (self.rank + 1) * self._share
        return max(0, min(self._places[place + 1], end) - max(self._places[place], start))

    def _find_weight(self, size: int) -> int:
        """Return the weight of a gradient: the last one of this segment that has its size and waits."""
        for place in reversed(self._waiting):
            if self._every[place].whole_bytes == size:
                self._waiting.remove(place)
                return place
        raise AssertionError(f"no weight of {size} bytes")

    def _add_slices(self, start: int, elements: int) -> None:
        """Add a gradient's slices, one of each rank that it belongs to (average_tensor); neighbours of a rank join."""
        end = start + elements
        while start < end:
            owner = start // self._share
            until = min(end, (owner + 1) * self._share)
            if self._slices and self._slices[-1][0] == owner:
                self._slices[-1][1] += until - start
            else:
                self._slices.append([owner, until - start])
            start = until

    def _reduce(self, held: HeldMemory) -> None:
        """Reduce the bucket, then copy what belongs to this rank.

        Slices of several ranks are joined in a copy, as many as are more than a bucket (allreduce_and_scatter).
        """
        if not self._filled:
            return
        joined: list[int] = []
        for _, elements in self._slices:
            joined.append(elements)
            if sum(joined) > self.bucket_elements:
                self._join(held, joined)
                joined = []
        self._join(held, joined)
        if self.offloads:  # the norm, before the copy to the host
            held.touch("other", round_up(FP64 * self._own))
        elif not self._partition and self._own:
            self._partition = self._mine_bytes
            first = self.stage == 1 or not self.accumulates
            held.take("gradients" if first else "gradient buckets", self._partition)
        if self.stage == 1 and not (self.offloads and self._own):  # cleared at the end of the pass
            self._late += self._large
        else:
            held.free("gradients", self._large)
        self._filled = self._large = self._own = 0
        self._slices = []

    def _join(self, held: HeldMemory, slices: Sequence[int]) -> None:
        elements = sum(slices)
        joined = round_up(self._width * elements) if len(slices) > 1 else 0
        reduced = round_up(FP32 * elements) if self._width < FP32 else 0  # gradients travel in fp32
        if joined + reduced:
            held.touch("gradient buckets", joined + reduced)

    def update(self, held: HeldMemory) -> None:
        """Take the norm in fp64, one gradient after the other, then one flat copy of this rank's gradients."""
        flat = round_up(FP32 * self._share)
        if self.offloads:  # the gradients are flat on the host, and reductions take their norms
            held.keep("other", self.update_copies * flat, True)
            return
        held.touch("other", round_up(FP64 * self._largest_mine))
        if self._width < FP32:  # flat in 16 bits before
            held.touch("other", round_up(self._width * self._share) + flat)
        held.take("other", flat)
        held.free("gradients", self._mine_bytes)
        held.take("other", self.update_copies * flat)
