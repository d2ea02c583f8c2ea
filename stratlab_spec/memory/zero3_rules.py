"""What DeepSpeed's stage 3 allocates in a step, as its engine does it (deepspeed 0.19.8, runtime/zero).

zero3     every weight is in shards; a module's weights are gathered while it computes, further ones before
zeropp    the same; hpz: after its first use each weight also has shards over the ranks of a node

    trace of the modules' weights ─▶ fetch ─▶ prefetch of the next ones ─▶ product ─▶ release, unless soon used again
                                                                  gradient ─▶ bucket ─▶ reduced through a copy

Weights of products (partitioned_param_coordinator.py) travel in 16 bits and become fp32. All others are small: they
persist, so that they are whole between the steps (stage3_param_persistence_threshold).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from stratlab_spec.memory.recording import BACKWARD, FP32, HALF, Allocation, NotRecorded, round_up
from stratlab_spec.memory.simulation import HeldMemory
from stratlab_spec.memory.zero3_trace import HEAD, START, ModuleTrace

FP64 = 8
SUB_GROUP = 1_000_000_000
"""Elements on a rank that one call of the optimizer updates (trainer/engines/deepspeed_config.py, sub_group_size)."""
NORM_PART = 250_000_000
"""Elements whose norm is taken at once (_constant_buffered_norm2)."""


@dataclass(eq=False)
class Gathering:
    """One all-gather (AllGatherHandle, AllGatherCoalescedHandle)."""

    weights: Sequence[int]
    buffer_bytes: int
    """Of all ranks' shards; freed when each weight has been waited for."""
    waiting: int
    is_whole: bool = False
    """The weights are copied out of the buffer."""


@dataclass
class Zero3Rules:
    """zero3 and zeropp with hpz.

    Args:
        bucket_elements: of gradients reduced together, at most the model's.
        persistent_elements: a weight of at most so many is whole between the steps.
        prefetch_elements, live_elements, reuse_elements: stage3_prefetch_bucket_size, stage3_max_live_parameters,
            stage3_max_reuse_distance.
        moments: of the optimizer.
        accumulates: a step has several micro-batches.
        keeps_embedding: the model asks for its type outside its module (packed rows), so it stays to the pass's end.
        update_copies: of all gradients, which the optimizer's step takes.
        node_shards: ranks of a node, with hpz; else 0.
        offload: in host memory: "optimizer" = master copies, moments and gradients; "all" = shards of weights too.

    Raises:
        NotRecorded: a weight that enters no product does not persist.
    """

    trace: ModuleTrace
    shards: int
    bucket_elements: int
    persistent_elements: int
    prefetch_elements: int
    live_elements: int
    reuse_elements: int
    moments: int
    accumulates: bool
    keeps_embedding: bool
    update_copies: int = 0
    node_shards: int = 0
    offload: str = "none"
    copies: bool = True
    follows_products: bool = True
    repeats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._size = self.trace.elements
        self._shard = [-(-size // self.shards) for size in self._size]
        trains = [weight.trains for weight in self.trace.weights]
        self._trained = [shard * each for shard, each in zip(self._shard, trains, strict=True)]
        self._persist = [size <= self.persistent_elements for size in self._size]
        outside = self.trace.places[START]
        for at, (weight, persists) in enumerate(zip(self.trace.weights, self._persist, strict=True)):
            is_fetched = self.trace.multiplies[at] or len(self.trace.modules[at]) > 1
            if not is_fetched and not persists and at not in outside:
                raise NotRecorded(f"persistent_elements={self.persistent_elements}, below {weight.name}")
        self._is_product = [weight.product for weight in self.trace.weights]
        self._copy = [round_up(HALF * shard) for shard in self._shard]  # of a shard in 16 bits
        # of a weight while it is gathered; on one rank its shard is the weight
        self._gathered = self.trace.whole_bytes if self.shards > 1 else [0] * len(self._size)
        self._persistent = [at for at, persists in enumerate(self._persist) if persists]
        self._outside = {*outside, *self.trace.places[HEAD]}
        self._lasting = {*self._persistent, *self._outside}  # what a layer does not gather and free
        self._persistent_bytes = sum(self._gathered[at] for at in self._persistent)
        self._groups = self._list_sub_groups()
        self._stays: dict[int, bool] = {}  # place in the trace -> the weight stays after it
        self._filled: list[int] = []  # weights whose gradients are in the bucket
        self._filled_elements = 0
        self._large = 0  # bytes of a gradient above the bucket's size, which waits for its reduction
        self._secondary: set[int] = set()  # with shards over the node's ranks
        self._rehearse()

    def _begin_pass(self) -> None:
        """Begin a micro-batch (reset_step)."""
        self.call = self._next = 0  # the next call; the first one whose weight is not yet fetched
        self._inflight: dict[int, Gathering] = {}
        self._available = {*self._persistent}
        self._live = 0  # elements gathered
        self._open: list[int] = []  # weights of the module that computes their gradients
        self._awaited: list[int] = []  # bytes of the copies for the further products of a module
        self._recomputing: int | None = None  # weight of the product whose layer is computed again

    def _rehearse(self) -> None:
        """Decide which weights stay after which call.

        DeepSpeed decides in the first pass that knows the trace, the second one, and remembers it (lru_cache of
        __params_to_release). If that is in the first step, what persists is not gathered before, and counts as live.
        """
        limits = self.prefetch_elements, self.live_elements, self.reuse_elements, self.persistent_elements
        known = (*limits, self.accumulates, self.keeps_embedding)
        if known in self.trace.stays:
            self._stays = dict(self.trace.stays[known])
            return
        nothing = HeldMemory()
        self._begin_pass()
        if self.accumulates:
            self._available.clear()
        while self.call < len(self.trace.calls):
            self._fetch(nothing)
            if self.call - 1 not in self.trace.early:
                self._release(nothing)
        self._secondary.clear()
        self.trace.stays[known] = dict(self._stays)

    def _fetch(self, held: HeldMemory) -> None:
        """Gather the next module's weights, wait for them, then gather further ones."""
        module = self.trace.modules[self.trace.calls[self.call]]
        missing = [at for at in module if at not in self._available and at not in self._inflight]
        if missing:
            self._gather(held, missing)
        for weight in module:
            if weight in self._inflight:
                self._wait(held, weight)
        self.call += len(module)
        self._next = max(self._next, self.call)
        self._prefetch(held)

    def _prefetch(self, held: HeldMemory) -> None:
        """Gather weights of the next modules, as many as may be live; every module without weights does so too."""
        calls = self.trace.calls
        while self._next < len(calls):
            most = min(self.live_elements - self._live, self.prefetch_elements)
            found: list[int] = []
            elements = 0
            while elements < most and self._next < len(calls):
                weight = calls[self._next]
                self._next += 1
                if weight not in self._available and weight not in self._inflight and weight not in found:
                    found.append(weight)
                    elements += self._size[weight]
            if not found:
                return
            self._gather(held, found)

    def _gather(self, held: HeldMemory, weights: Sequence[int]) -> None:
        """Begin an all-gather: a buffer of all shards, into which this rank's are copied in 16 bits."""
        on_node = [at for at in weights if at in self._secondary]
        if on_node:
            self._gather_group(held, on_node, self.shards // self.node_shards)
            weights = [at for at in weights if at not in self._secondary]
        if weights:
            self._gather_group(held, weights, 1)

    def _gather_group(self, held: HeldMemory, weights: Sequence[int], parts: int) -> None:
        """Begin an all-gather over all ranks; or over a node's, each of which has so many parts."""
        half = wide = copied = 0
        for at in weights:
            self._live += self._size[at]
            if self._is_product[at]:
                half += self._shard[at]
                copied += self._copy[at] if parts == 1 else round_up(HALF * parts * self._shard[at])
            elif len(weights) > 1:  # an fp32 buffer of one weight becomes the weight
                wide += self._shard[at]
        buffer = round_up(HALF * self.shards * half) + round_up(FP32 * self.shards * wide)
        if self.shards == 1:  # the shard is the weight
            buffer = copied = 0
        held.touch("gathered", buffer + copied)
        held.take("gathered", buffer)
        self._inflight |= dict.fromkeys(weights, Gathering(weights, buffer, len(weights)))

    def _wait(self, held: HeldMemory, weight: int) -> None:
        """Finish the all-gather of a weight: all of the same one become fp32."""
        one = self._inflight.pop(weight)
        if not one.is_whole:
            for at in one.weights:
                is_joined = self.shards > 1 < len(one.weights) and self._is_product[at]
                joined = self.trace.copied_bytes[at] if is_joined else 0
                held.touch("gathered", joined + self._gathered[at])
                held.take("gathered", self._gathered[at])
            self._available.update(one.weights)
            one.is_whole = True
        one.waiting -= 1
        if not one.waiting:
            held.free("gathered", one.buffer_bytes)

    def _release(self, held: HeldMemory) -> None:
        """Free the last module's weights, unless a fetch has seen the next use or it is near (__params_to_release)."""
        for at in range(self.trace.begins[self.call - 1], self.call):
            self._release_weight(held, at)

    def _release_weight(self, held: HeldMemory, at: int) -> None:
        weight = self.trace.calls[at]
        if at not in self._stays:
            asked = self._size[self.trace.embedding] if self.keeps_embedding else 0
            again = self.trace.next_use[at]
            is_fetched = again is not None and again < self._next
            is_near = self.trace.distance(at, asked) < self.reuse_elements
            stays = self._persist[weight] or (self.keeps_embedding and weight == self.trace.embedding)
            self._stays[at] = stays or is_near or is_fetched
        if not self._stays[at] and weight in self._available:
            self._free(held, weight)

    def _free(self, held: HeldMemory, weight: int) -> None:
        if self.node_shards and weight not in self._secondary:  # _partition_param_sec
            self._secondary.add(weight)
            held.keep("parameters", self._on_node(weight), self.offload == "all")
        held.free("gathered", self._gathered[weight])
        self._available.discard(weight)
        self._live -= self._size[weight]

    def _on_node(self, weight: int) -> int:
        return round_up(FP32 * self._shard[weight] * self.shards // self.node_shards)

    def hold_state(self, held: HeldMemory) -> None:
        local = sum(self._trained)
        frozen = [shard for shard, trained in zip(self._shard, self._trained, strict=True) if not trained]
        groups = sum(self._groups)
        offloads = self.offload != "none"
        parameters = round_up(FP32 * local) + sum(round_up(FP32 * shard) for shard in frozen)
        held.keep("parameters", parameters, self.offload == "all")
        held.keep("master copies", groups, offloads)
        held.keep("optimizer state", self.moments * groups, offloads)
        held.keep("gradients", round_up(FP32 * local), offloads)  # grad_partitions_flat_buffer
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
            if self.call in trace.early:
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

    def _fetch_through(self, held: HeldMemory, weight: int | None = None) -> None:
        """Call the modules up to that of a weight; None = of the next product."""
        while True:
            module = self.trace.modules[self.trace.calls[self.call]]
            self._fetch(held)
            if weight in module or (weight is None and any(self.trace.multiplies[at] for at in module)):
                return

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
        if self._place == START:  # whose weights are there
            return
        if self._awaited:
            if product.bytes in self._awaited:
                self._awaited.remove(product.bytes)
            return
        again = self._recomputing
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
            copies.remove(begun)
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

    def _list_gathers(self) -> list[Gathering]:
        """Return those in flight, each once."""
        return [*{id(one): one for one in self._inflight.values()}.values()]

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
        copy = 0
        if len(self._filled) > 1 or any(self._size[at] % self.shards for at in self._filled):
            copy = round_up(FP32 * self.shards * sum(self._shard[at] for at in self._filled))
        norm = 0
        if self.offload != "none":
            part = min(NORM_PART, max((self._shard[at] for at in self._filled), default=0))
            norm = round_up(FP64 * part)
        held.touch(cause, copy + norm)
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
            for size in (round_up(FP64 * max(self._trained)), (1 + self.update_copies) * largest):
                held.touch("other", size)
        held.take("gathered", self._persistent_bytes)
