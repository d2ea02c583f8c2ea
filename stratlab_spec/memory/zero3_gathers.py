"""Which weights DeepSpeed's stage 3 has gathered at each moment (deepspeed 0.19.8, partitioned_param_coordinator.py).

    trace of the modules' weights ─▶ fetch ─▶ prefetch of the next ones ─▶ product ─▶ release, unless soon used again

Weights of products travel in 16 bits and become fp32, unless the precision is fp32 or bf16_native: then all weights and
products have one type. Small weights persist: they are whole between the steps (stage3_param_persistence_threshold).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratlab_spec.memory.recording import HALF, NotRecorded, round_up
from stratlab_spec.memory.simulation import HeldMemory
from stratlab_spec.memory.zero3_trace import START, ModuleTrace


@dataclass(eq=False)
class Gathering:
    """One all-gather (AllGatherHandle, AllGatherCoalescedHandle)."""

    weights: Sequence[int]
    buffer_bytes: int
    """Of all ranks' shards; freed when each weight has been waited for."""
    waiting: int
    is_whole: bool = False
    """The weights are copied out of the buffer."""
    is_weight: bool = False
    """The buffer becomes the weight."""


@dataclass
class WeightGathers:
    """Gather and release weights as the coordinator does.

    Args:
        persistent_elements: a weight of at most so many is whole between the steps.
        prefetch_elements, live_elements, reuse_elements: stage3_prefetch_bucket_size, stage3_max_live_parameters,
            stage3_max_reuse_distance.
        accumulates: a step has several micro-batches.
        keeps_embedding: the model asks for its type outside its module (packed rows), so it stays to the pass's end.
        node_shards: ranks of a node, with hpz; else 0.
        casts: products have 16 bits and weights fp32.
        offload: in host memory: "optimizer" = master copies, moments and gradients; "all" = shards of weights too.

    Raises:
        NotRecorded: a weight that enters no product does not persist.
    """

    trace: ModuleTrace
    shards: int
    persistent_elements: int
    prefetch_elements: int
    live_elements: int
    reuse_elements: int
    accumulates: bool
    keeps_embedding: bool
    node_shards: int = 0
    offload: str = "none"
    casts: bool = True

    def __post_init__(self) -> None:
        self._width = self.trace.weights[0].element_bytes  # of weights and gradients
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
        self._is_product = [weight.product and self.casts for weight in self.trace.weights]
        self._copy = [round_up(HALF * shard) for shard in self._shard]  # of a shard in 16 bits
        # of a weight while it is gathered; on one rank its shard is the weight
        self._gathered = self.trace.whole_bytes if self.shards > 1 else [0] * len(self._size)
        self._persistent = [at for at, persists in enumerate(self._persist) if persists]
        self._persistent_bytes = sum(self._gathered[at] for at in self._persistent)
        self._stays: dict[int, bool] = {}  # place in the trace -> the weight stays after it
        self._secondary: set[int] = set()  # with shards over the node's ranks
        self._rehearse()

    def _begin_pass(self) -> None:
        """Begin a micro-batch (reset_step)."""
        self.call = self._next = 0  # the next call; the first one whose weight is not yet fetched
        self._inflight: dict[int, Gathering] = {}
        self._available = {*self._persistent}
        self._live = 0  # elements gathered

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
            elif len(weights) > 1:
                wide += self._shard[at]
        buffer = round_up(HALF * self.shards * half) + round_up(self._width * self.shards * wide)
        if self.shards == 1:  # the shard is the weight
            buffer = copied = 0
        held.touch("gathered", buffer + copied)
        held.take("gathered", buffer)
        is_weight = len(weights) == 1 and not self._is_product[weights[0]]
        if is_weight:
            held.take("gathered", self._gathered[weights[0]])
        found = Gathering(weights, buffer, len(weights), is_weight=is_weight)
        self._inflight |= dict.fromkeys(weights, found)

    def _wait(self, held: HeldMemory, weight: int) -> None:
        """Finish the all-gather of a weight: all of the same one become fp32."""
        one = self._inflight.pop(weight)
        if not one.is_whole:
            for at in one.weights:
                is_joined = self.shards > 1 < len(one.weights) and self._is_product[at]
                joined = self.trace.copied_bytes[at] if is_joined else 0
                whole = 0 if one.is_weight else self._gathered[at]
                held.touch("gathered", joined + whole)
                held.take("gathered", whole)
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
        return round_up(self._width * self._shard[weight] * self.shards // self.node_shards)

    def _fetch_through(self, held: HeldMemory, weight: int | None = None) -> None:
        """Call the modules up to that of a weight; None = of the next product."""
        while True:
            module = self.trace.modules[self.trace.calls[self.call]]
            self._fetch(held)
            if weight in module or (weight is None and any(self.trace.multiplies[at] for at in module)):
                return

    def _list_gathers(self) -> list[Gathering]:
        """Return those in flight, each once."""
        return [*{id(one): one for one in self._inflight.values()}.values()]
