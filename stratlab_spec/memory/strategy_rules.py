"""What each strategy allocates in a step, as its engine does it (trainer/strategies); all sizes for one rank.

WholeRules      single, ddp    every rank holds all weights, gradients and moments
ShardedRules    fsdp, hsdp     shards between the steps; a block's weights are gathered while it computes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import NamedTuple

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


class GroupBytes(NamedTuple):
    """Bytes of a group of weights on one rank, all shards rounded up to whole blocks."""

    parameters: int
    moment: int
    """One moment of the optimizer, or one copy of the gradients."""
    counters: int
    """Numbers of the optimizer's steps."""
    copied: int
    """The 16-bit copy of the shards; on one rank of the largest weight."""
    buffer: int
    """Shards of all ranks, as gathered."""
    whole: int
    """Whole weights with their padding."""
    gradients: int
    """Buffer of whole gradients, as reduced."""
    reduced: int
    """This rank's shard of the sum."""


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
        different = {id(group): group for group in groups.values()}  # equal layers share one list
        known = {name: self._measure(group) for name, group in different.items()}
        self._groups = {place: known[id(group)] for place, group in groups.items()}
        self._buffer = self._bucket = 0
        self._group = ROOT
        self._gradients: Counter[int] = Counter()

    def _shard(self, weight: Weight) -> int:
        """Return the elements of the largest shard, to which all are padded: rows, as torch.chunk."""
        rows, *others = weight.shape
        return -(-rows // self.shards) * prod(others)

    def _width(self, weight: Weight) -> int:
        return HALF if weight.product and self.half else FP32

    def _measure(self, group: Sequence[Weight]) -> GroupBytes:
        shards = [(one, self._shard(one)) for one in group]
        sent = [(self._width(one), shard) for one, shard in shards]
        copied = [HALF * shard for width, shard in sent if width == HALF]
        buffer = round_up(self.shards * sum(width * shard for width, shard in sent))
        if self.shards == 1:  # each weight is copied to 16 bits, and the copy into the whole weight
            copied, buffer = [max(copied, default=0)], 0
        trained = [FP32 * shard for one, shard in shards if one.trains]
        return GroupBytes(
            parameters=sum(round_up(FP32 * shard) for _, shard in shards),
            moment=sum(map(round_up, trained)),
            counters=self.counts_steps * BLOCK_BYTES * len(trained),
            copied=round_up(sum(copied)),
            buffer=buffer,
            whole=sum(round_up(self.shards * width * shard) for width, shard in sent),
            gradients=round_up(self.shards * sum(trained)),
            reduced=round_up(sum(trained)),
        )

    def hold_state(self, held: HeldMemory) -> None:
        groups = self._groups.values()
        held.keep("parameters", sum(group.parameters for group in groups), self.offloads)
        state = sum(self.moments * group.moment + group.counters for group in groups)
        held.keep("optimizer state", state, self.offloads)
        if self.accumulates:
            shards = sum(group.reduced for group in groups)
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
            held.free("gathered", self._groups[layer].whole)
            if segment.endswith(BACKWARD):
                self._reduce_gradients(held, layer)
        elif segment == "head":
            self._free_buffer(held)
        elif segment == f"start{BACKWARD}":
            held.free("gathered", self._groups[ROOT].whole)
            self._reduce_gradients(held, ROOT)
            held.free("gradient buckets", self._bucket)
            self._bucket = 0

    def _take_whole(self, held: HeldMemory, group: int) -> None:
        held.take("gathered", self._groups[group].whole)
        if self.shards == 1:
            held.touch("gathered", self._groups[group].copied)

    def _begin_gather(self, held: HeldMemory, group: int) -> None:
        if self.shards == 1:
            return
        copied, self._buffer = self._groups[group].copied, self._groups[group].buffer
        held.touch("gathered", copied + self._buffer)
        held.take("gathered", self._buffer)

    def _free_buffer(self, held: HeldMemory) -> None:
        held.free("gathered", self._buffer)
        self._buffer = 0

    def _reduce_gradients(self, held: HeldMemory, group: int) -> None:
        buffer, shard = self._groups[group].gradients, self._groups[group].reduced
        held.free("gradient buckets", self._bucket)
        held.take("gradient buckets", buffer)
        held.free("gradients", self._gradients[group])
        self._gradients[group] = 0
        moves = self.completes if self.replicated else not self.accumulates
        held.keep("gradients", shard, self.offloads and moves)
        if self.shards == 1:  # divided in a copy
            held.touch("gradient buckets", buffer)
        if self.accumulates:
            held.free("gradients", shard)
        self._bucket = buffer

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        held.take("gradients", size)
        self._gradients[self._group] += size

    def complete_gradient(self, held: HeldMemory, size: int) -> None: ...

    def update(self, held: HeldMemory) -> None:
        trained = sum(group.moment for group in self._groups.values())
        held.keep("other", self.update_copies * trained, self.offloads)


def list_blocks(weights: Mapping[str, list[Weight]], layers: int) -> list[list[Weight]]:
    """Return the weights of each layer; equal layers share one list."""
    return [weights[str(at)] if str(at) in weights else weights["layer"] for at in range(layers)]


def list_weights(measured: Measured, layers: int) -> list[Weight]:
    """Return every weight of the model, in its order."""
    blocks = chain.from_iterable(list_blocks(measured.weights, layers))
    return [*measured.weights["start"], *blocks, *measured.weights["head"]]
