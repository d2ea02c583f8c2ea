"""What each strategy allocates in a step, as its engine does it (trainer/strategies); all sizes for one rank.

WholeRules      single, ddp    every rank holds all weights, gradients and moments
ShardedRules    fsdp, hsdp     shards between the steps; a block's weights are gathered while it computes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from stratlab_spec.memory.recording import (
    BACKWARD,
    BLOCK_BYTES,
    FORWARD,
    FP32,
    HALF,
    Measured,
    Weight,
    round_up,
)
from stratlab_spec.memory.simulation import HeldMemory

ROOT = -1
"""The group of all weights outside layers."""


@dataclass
class WholeRules:
    """single and ddp.

    single keeps the gradients that autograd makes. ddp has them in the buckets that it reduces; they stay allocated.
    """

    weights: Sequence[Weight]
    moments: int
    accumulates: bool
    bucketed: bool
    """ddp."""
    update_copies: int = 0
    """Copies of all gradients that the optimizer's step takes."""
    counts_steps: bool = False
    """The optimizer keeps a number of its steps for each weight (AdamW)."""
    copies: bool = True
    follows_products: bool = False
    repeats: tuple[str, ...] = (FORWARD, BACKWARD)

    def hold_state(self, held: HeldMemory) -> None:
        trained = [weight.whole_bytes for weight in self.weights if weight.trains]
        held.take("parameters", sum(weight.whole_bytes for weight in self.weights))
        counters = self.counts_steps * BLOCK_BYTES * len(trained)
        held.take("optimizer state", self.moments * sum(trained) + counters)
        if self.bucketed:
            held.take("gradient buckets", sum(trained))
        elif self.accumulates:
            held.take("gradients", sum(trained))

    def enter(self, held: HeldMemory, segment: str, layer: int) -> None: ...

    def leave(self, held: HeldMemory, segment: str, layer: int) -> None: ...

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        held.take("gradients", size)

    def complete_gradient(self, held: HeldMemory, size: int) -> None:
        if self.accumulates or self.bucketed:  # added to what is there
            held.free("gradients", size)

    def update(self, held: HeldMemory) -> None:
        trained = sum(weight.whole_bytes for weight in self.weights if weight.trains)
        held.take("other", self.update_copies * trained)


@dataclass
class ShardedRules:
    """fsdp and hsdp (PyTorch's fully_shard), a group of weights per block and one of all others.

    A gather takes a 16-bit copy of the shard, a buffer of all shards and the whole weights; the buffer lives until the
    next gather is copied out of its own. A reduction takes a buffer of whole gradients, which lives until the next one.
    """

    blocks: Sequence[Sequence[Weight]]
    """The weights of each layer."""
    root: Sequence[Weight]
    shards: int
    moments: int
    accumulates: bool
    half: bool
    """Products' weights are gathered in 16 bits."""
    update_copies: int = 0
    """Copies of this rank's gradients that the optimizer's step takes."""
    offloads: bool = False
    """Shards live in host memory: of weights, gradients and moments."""
    replicated: bool = False
    """hsdp: the sum over micro-batches stays on the device until replicas add theirs."""
    completes: bool = True
    """It is the last micro-batch."""
    counts_steps: bool = False
    copies: bool = False
    follows_products: bool = False
    repeats: tuple[str, ...] = (FORWARD, BACKWARD)

    def __post_init__(self) -> None:
        groups = {ROOT: self.root, **dict(enumerate(self.blocks))}
        known = {
            id(group): (self._measure_gather(group), self._measure_reduction(group))
            for group in groups.values()
        }
        self._gather = {place: known[id(group)][0] for place, group in groups.items()}
        self._reduce = {place: known[id(group)][1] for place, group in groups.items()}
        self._buffer = self._bucket = 0
        self._group = ROOT
        self._gradients: Counter[int] = Counter()

    def _shard(self, weight: Weight) -> int:
        """Return the elements of the largest shard, to which all are padded: rows, as torch.chunk."""
        rows, *others = weight.shape
        rest = 1
        for size in others:
            rest *= size
        return -(-rows // self.shards) * rest

    def _width(self, weight: Weight) -> int:
        return HALF if weight.product and self.half else FP32

    def _measure_gather(self, group: Sequence[Weight]) -> tuple[int, int, int]:
        """Return the bytes of (copy of the shards, buffer of all shards, whole weights with their padding)."""
        copied = [self._shard(one) * HALF for one in group if self._width(one) == HALF]
        local = sum(self._shard(one) * self._width(one) for one in group)
        whole = sum(round_up(self._shard(one) * self.shards * self._width(one)) for one in group)
        if self.shards == 1:  # each weight is copied to 16 bits, and the copy into the whole weight
            return round_up(max(copied, default=0)), 0, whole
        return round_up(sum(copied)), round_up(local * self.shards), whole

    def _measure_reduction(self, group: Sequence[Weight]) -> tuple[int, int]:
        """Return the bytes of (buffer of whole gradients, shard of the sum)."""
        local = sum(self._shard(one) for one in group if one.trains) * FP32
        return round_up(local * self.shards), round_up(local)

    def hold_state(self, held: HeldMemory) -> None:
        every = [*self.root, *chain.from_iterable(self.blocks)]
        held.keep("parameters", sum(round_up(FP32 * self._shard(one)) for one in every), self.offloads)
        trained = [round_up(FP32 * self._shard(one)) for one in every if one.trains]
        counters = self.counts_steps * BLOCK_BYTES * len(trained)
        held.keep("optimizer state", self.moments * sum(trained) + counters, self.offloads)
        if self.accumulates:
            shards = sum(shard for _, shard in self._reduce.values())
            held.keep("gradients", shards, self.offloads and not self.replicated)

    def enter(self, held: HeldMemory, segment: str, layer: int) -> None:
        self._group = layer
        if segment == "start":
            self._begin_gather(held, ROOT)
            self._take_whole(held, ROOT)
        elif segment == f"head{BACKWARD}":
            self._free_buffer(held)
            self._begin_gather(held, len(self.blocks) - 1)
        elif layer >= 0 and not segment.endswith(BACKWARD):
            before, self._buffer = self._buffer, 0
            self._begin_gather(held, layer)
            self._take_whole(held, layer)
            held.free("gathered", before)
        elif layer >= 0:
            self._take_whole(held, layer)
            self._free_buffer(held)
            if layer > 0:
                self._begin_gather(held, layer - 1)

    def leave(self, held: HeldMemory, segment: str, layer: int) -> None:
        if layer >= 0:
            held.free("gathered", self._gather[layer][2])
            if segment.endswith(BACKWARD):
                self._reduce_gradients(held, layer)
        elif segment == "head":
            self._free_buffer(held)
        elif segment == f"start{BACKWARD}":
            held.free("gathered", self._gather[ROOT][2])
            self._reduce_gradients(held, ROOT)
            held.free("gradient buckets", self._bucket)
            self._bucket = 0

    def _take_whole(self, held: HeldMemory, group: int) -> None:
        copied, _, whole = self._gather[group]
        held.take("gathered", whole)
        if self.shards == 1:
            held.take("gathered", copied)
            held.free("gathered", copied)

    def _begin_gather(self, held: HeldMemory, group: int) -> None:
        if self.shards == 1:
            return
        copied, buffer, _ = self._gather[group]
        held.take("gathered", copied + buffer)
        held.free("gathered", copied)
        self._buffer = buffer

    def _free_buffer(self, held: HeldMemory) -> None:
        held.free("gathered", self._buffer)
        self._buffer = 0

    def _reduce_gradients(self, held: HeldMemory, group: int) -> None:
        buffer, shard = self._reduce[group]
        held.free("gradient buckets", self._bucket)
        held.take("gradient buckets", buffer)
        held.free("gradients", self._gradients[group])
        self._gradients[group] = 0
        moves = self.completes if self.replicated else not self.accumulates
        held.keep("gradients", shard, self.offloads and moves)
        if self.shards == 1:  # divided in a copy
            held.take("gradient buckets", buffer)
            held.free("gradient buckets", buffer)
        if self.accumulates:
            held.free("gradients", shard)
        self._bucket = buffer

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        held.take("gradients", size)
        self._gradients[self._group] += size

    def complete_gradient(self, held: HeldMemory, size: int) -> None: ...

    def update(self, held: HeldMemory) -> None:
        every = [*self.root, *chain.from_iterable(self.blocks)]
        trained = sum(round_up(FP32 * self._shard(one)) for one in every if one.trains)
        held.keep("other", self.update_copies * trained, self.offloads)


def list_blocks(measured: Measured, layers: int) -> list[list[Weight]]:
    """Return the weights of each layer; equal layers share one list."""
    each = measured.weights
    return [each[str(at)] if str(at) in each else each["layer"] for at in range(layers)]


def list_weights(measured: Measured, layers: int) -> list[Weight]:
    """Return every weight of the model, in its order."""
    blocks = chain.from_iterable(list_blocks(measured, layers))
    return [*measured.weights["start"], *blocks, *measured.weights["head"]]
