"""What DeepSpeed's stage 3 allocates in a step, as its engine does it (deepspeed 0.19.8, runtime/zero/stage3.py).

zero3     every weight is in shards; a module's weights are gathered while it computes, further ones before
zeropp    the same; hpz: after its first use each weight also has shards over the ranks of a node

    segments and products of a recording ─▶ calls of modules ─▶ zero3_gathers.py
                                            gradient ─▶ bucket ─▶ reduced through a copy ─▶ this rank's gradients
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from stratlab_spec.memory.recording import BACKWARD, FP32, Allocation, NotRecorded, round_up
from stratlab_spec.memory.simulation import HeldMemory
from stratlab_spec.memory.zero3_gathers import WeightGathers
from stratlab_spec.memory.zero3_trace import HEAD, START

FP64 = 8
SUB_GROUP = 1_000_000_000
"""Elements on a rank that one call of the optimizer updates (trainer/engines/deepspeed_config.py, sub_group_size)."""
NORM_PART = 250_000_000
"""Elements whose norm is taken at once (_constant_buffered_norm2)."""


@dataclass(kw_only=True)
class Zero3Rules(WeightGathers):
    """zero3 and zeropp with hpz.

    Args:
        bucket_elements: of gradients reduced together, at most the model's.
        moments: of the optimizer.
        update_copies: of all gradients, which the optimizer's step takes.
    """

    bucket_elements: int
    moments: int
    update_copies: int = 0
    copies: bool = True
    follows_products: bool = True
    repeats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._outside = {*self.trace.places[START], *self.trace.places[HEAD]}
        self._lasting = {*self._persistent, *self._outside}  # what a layer does not gather and free
        self._groups = self._list_sub_groups()
        self._filled: list[int] = []  # weights whose gradients are in the bucket
        self._filled_elements = 0
        self._large = 0  # bytes of a gradient above the bucket's size, which waits for its reduction

    def _begin_pass(self) -> None:
        super()._begin_pass()
        self._open: list[int] = []  # weights of the module that computes their gradients
        self._awaited: list[int] = []  # bytes of the copies for the further products of a module
        self._recomputing: int | None = None  # weight of the product whose layer is computed again

    def hold_state(self, held: HeldMemory) -> None:
        local = sum(self._trained)
        frozen = [shard for shard, trained in zip(self._shard, self._trained, strict=True) if not trained]
        groups = sum(self._groups)
        offloads = self.offload != "none"
        parameters = sum(round_up(self._width * size) for size in (local, *frozen))
        held.keep("parameters", parameters, self.offload == "all")
        held.keep("master copies", groups, offloads)
        held.keep("optimizer state", self.moments * groups, offloads)
        held.keep("gradients", round_up(self._width * local), offloads)  # grad_partitions_flat_buffer
        if offloads:  # of the optimizer, where the last micro-batch copies them
            held.keep("gradients", groups, True)
        held.take("gradient buckets", round_up(FP32 * self.bucket_elements))
        held.take("gathered", self._persistent_bytes)
        if self.node_shards:  # of earlier micro-batches; those of frozen weights are never made again
            travel = (at for at, persists in enumerate(self._persist) if not persists)
            self._secondary = {at for at in travel if self.accumulates or not self._trained[at]}
            held.keep("parameters", sum(map(self._on_node, self._secondary)), self.offload == "all")

    def _list_sub_groups(self) -> list[int]:
        """Return the bytes of each group that the optimizer updates at once (_create_fp16_sub_groups)."""
        found, elements = [], 0
        for shard in self._trained:
            elements += shard
            if elements >= SUB_GROUP:
                found.append(round_up(FP32 * elements))
                elements = 0
        return [*found, round_up(FP32 * elements)] if elements else found

    def enter(self, held: HeldMemory, segment: str, layer: int) -> None:
        trace = self.trace
        self._place = layer if layer >= 0 else HEAD if segment.startswith("head") else START
        if segment == "start":
            self._begin_pass()
            self._start(held, len(trace.places[START]))
        elif segment == f"head{BACKWARD}":
            self._open = [trace.head]
            self._fetch_through(held, trace.head)
            if trace.head == trace.embedding or not self._trained[trace.head]:
                self._leave_head(held, segment)
        elif segment == f"start{BACKWARD}" and trace.embedding not in trace.calls[self.call :]:
            return
        elif segment == f"start{BACKWARD}":
            self._open = [trace.embedding]
            self._fetch_through(held, trace.embedding)
        elif segment.endswith(BACKWARD):
            while self.call not in trace.early and not trace.multiplies[trace.calls[self.call]]:
                self._fetch(held)
            while self.call in trace.early:
                self._fetch(held)
                self._recomputing = trace.calls[self.call - 1]

    def _start(self, held: HeldMemory, weights: int) -> None:
        """Call the modules before the layers."""
        if weights > 1:  # containers of an image model gather before its first weight
            self._prefetch(held)
        for at in range(weights):
            self._fetch(held)
            if self._is_product[self.trace.calls[at]] and at < weights - 1:
                self._release(held)

    def _leave_head(self, held: HeldMemory, segment: str) -> None:
        """Release the head's weight, if its gradient is complete only with the embedding's, or never.

        A loss without chunks makes its part of the gradient before.
        """
        whole = self.trace.whole_bytes[self.trace.head]
        if any(event.taken and event.bytes == whole for event in self.trace.measured.segments[segment]):
            held.touch("activations", whole)
        self._open = []
        self._release(held)
        self._prefetch(held)

    def leave(self, held: HeldMemory, segment: str, layer: int) -> None:
        if segment == "start" and self.trace.places[START]:
            self._release(held)
        elif segment == f"start{BACKWARD}":
            self._reduce(held, "activations")
            for at in self.trace.places[START]:
                if at in self._available and not self._persist[at]:
                    self._free(held, at)

    def begin_product(self, held: HeldMemory, product: Allocation) -> None:
        """Fetch the weight; but the last product of a recomputed layer already has it."""
        trace, before = self.trace, self.call - 1
        if self._place == START or (
            self._place == HEAD and trace.head in self._open
        ):  # whose weights are there
            return
        if self._awaited:
            if product.bytes in (0, *self._awaited):
                self._awaited.remove(product.bytes or self._awaited[0])
            return
        again = self._recomputing
        if again is not None and self._place in trace.without_last and self._next_product() == again:
            self._fetch_through(held)
            before = self.call - 1
        if trace.calls[before] == again and before not in trace.early:
            copies = self._list_copies(again)
            if product.bytes in (0, *copies):  # else its bias
                self._open, self._recomputing = self._list_trained(again), None
                self._await_others(copies, product.bytes)
            return
        copies = self._list_copies(self._next_product())
        if product.bytes in (0, *copies):  # else a bias
            self._fetch_through(held)
            if trace.is_backward[self.call - 1] and (
                trained := self._list_trained(trace.calls[self.call - 1])
            ):
                self._open = trained
            self._await_others(copies, product.bytes)

    def _list_copies(self, weight: int) -> list[int]:
        """Return the bytes of the copies for the products of a weight's module."""
        trace = self.trace
        return [trace.copied_bytes[at] for at in trace.modules[weight] if trace.multiplies[at]]

    def _list_trained(self, weight: int) -> list[int]:
        return [at for at in self.trace.modules[weight] if self._trained[at]]

    def _await_others(self, copies: list[int], begun: int) -> None:
        self._awaited = copies
        if len(copies) > 1:
            copies.remove(begun or copies[0])  # a mark has no size
        else:
            copies.clear()

    def _next_product(self) -> int:
        weight = self.trace.next_product[self.call]
        if weight is None:
            raise NotRecorded("more products than weights")
        return weight

    def end_product(self, held: HeldMemory, product: Allocation) -> None:
        """Release the weight after a forward call; a recomputed layer's last one ends early, without its hook."""
        weight = self.trace.calls[self.call - 1]
        is_over = not self._open and not self._awaited and weight != self._recomputing
        if is_over and product.bytes in (0, *self._list_copies(weight)):
            self._release(held)
            # its container's call fetches before the next product
            if self.trace.leaves_module[self.call - 1]:
                self._prefetch(held)

    def describe(self, layer: int) -> Hashable:
        ends = not self._outside.isdisjoint([*self._filled, *self._inflight])
        if ends or (self.node_shards and len(self._secondary) < self._persist.count(False)):
            return object()  # no other layer's state
        first = self.trace.places[layer][0]
        gathers = self._list_gathers()
        return (
            self._next - self.call,
            self._live,
            tuple(self._open),
            tuple(self._awaited),
            self._recomputing,
            tuple([weight - first for weight in self._filled]),
            self._large,
            frozenset([weight - first for weight in self._available - self._lasting]),
            frozenset(self._available & self._outside),
            *[(weight - first, gathers.index(one)) for weight, one in self._inflight.items()],
            *[(one.waiting, one.is_whole, one.buffer_bytes) for one in gathers],
        )

    def count_alike(self, calls: int, left: int, period: int) -> int:
        """Return as ProductRules: while fetches look at equal layers only, and the same weights stay after calls."""
        times = (left * calls // period - (self._next - self.call)) // calls
        for at in range(self.call - calls, self.call + (times - 1) * calls):
            if self._stays.get(at) != self._stays.get(at + calls):
                return (at - self.call) // calls + 1
        return times

    def skip(self, calls: int, layers: int) -> None:
        shift = layers * len(self.trace.places[0])
        self.call += calls
        self._next += calls
        self._filled = [weight + shift for weight in self._filled]
        ahead = {weight + shift for weight in self._available - self._lasting}
        self._available = self._available & self._lasting | ahead
        for one in self._list_gathers():
            one.weights = [weight + shift for weight in one.weights]
        self._inflight = {weight + shift: one for weight, one in self._inflight.items()}

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        held.take("gradients", size)

    def complete_gradient(self, held: HeldMemory, size: int) -> None:
        """Move a gradient into the bucket, which is reduced before if it is too full; then release the weight."""
        weight = next((at for at in self._open if self.trace.whole_bytes[at] == size), None)
        is_open = weight is not None
        if not is_open:
            weight = self.trace.weight_of_size.get((self._place, size))
        if weight is None:
            raise NotRecorded(f"a gradient of {size} bytes, in stage 3")
        elements = self._size[weight]
        if self._filled and self._filled_elements + elements > self.bucket_elements:
            self._reduce(held, "gradient buckets")
        self._filled.append(weight)
        self._filled_elements += elements
        if elements > self.bucket_elements:
            self._large = size
        else:
            held.free("gradients", size)
        if is_open:
            self._open.remove(weight)
            if not self._open:
                self._release(held)
                self._prefetch(held)

    def _reduce(self, held: HeldMemory, cause: str) -> None:
        """Join all gradients of the bucket by rank in a copy, and reduce it (reduce_scatter_coalesced).

        One gradient that the ranks divide evenly needs no copy. With offload its norm follows, in fp64.
        """
        copy = kept = norm = 0
        if len(self._filled) > 1 or any(self._size[at] % self.shards for at in self._filled):
            copy = kept = round_up(FP32 * self.shards * sum(self._shard[at] for at in self._filled))
        if self._width < FP32:  # the bucket has fp32, and this rank's gradients become 16 bits
            kept = sum(round_up(self._width * self._shard[at]) for at in self._filled)
            wide = round_up(FP32 * self._filled_elements) if self._large else 0  # it was not in the bucket
            held.touch(cause, copy + wide + kept)
        if self.offload != "none":
            part = min(NORM_PART, max((self._shard[at] for at in self._filled), default=0))
            norm = round_up(FP64 * part)
        held.touch(cause, kept + norm)
        held.free("gradients", self._large)
        self._filled, self._filled_elements, self._large = [], 0, 0

    def update(self, held: HeldMemory) -> None:
        """Free what persists, take the norm in fp64, one shard after the other, then a flat copy of each group."""
        held.free("gathered", self._persistent_bytes)
        if self.node_shards:  # which gives what persists shards over the node too, until the next gather
            persistent = sum(map(self._on_node, self._persistent))
            held.keep("parameters", persistent, self.offload == "all")
        largest = max(self._groups)
        if self.offload != "none":  # no norm: reductions take it
            held.keep("other", self.update_copies * largest, True)
        else:
            before = self._width * largest // FP32 if self._width < FP32 else 0  # flat in 16 bits
            norm = round_up(FP64 * max(self._trained))
            for size in (norm, before + largest, (1 + self.update_copies) * largest):
                held.touch("other", size)
        held.take("gathered", self._persistent_bytes)
