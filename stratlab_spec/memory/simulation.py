"""Simulate the memory of one training step: a recording's events, and what the strategy allocates between them.

    forward:   start ─▶ first ─▶ second ─▶ middle x n ─▶ last ─▶ head        at each border the strategy may gather,
    backward:  head ─▶ last ─▶ middle x n ─▶ second ─▶ first ─▶ start        free, reduce; at each gradient too

`simulate` walks through the last micro-batch of a step, and through an earlier one if a strategy may hold more there.
It holds one number per cause (trainer/memory_estimation/timeline.py) and returns the fullest moment of each window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from stratlab_spec.memory.recording import (
    BACKWARD,
    CACHED,
    COPY,
    FORWARD,
    Allocation,
    Measured,
    Stretch,
    name_layer,
)


class Rules(Protocol):
    """What one strategy holds and allocates on one rank; `HeldMemory` calls in the order of a step."""

    copies: bool
    """Whether products copy fp32 weights to 16 bits, as recorded."""
    repeats: tuple[str, ...]
    """Directions in which it does the same for each of several equal layers in a row: FORWARD, BACKWARD."""
    follows_products: bool
    """Whether it is a ProductRules."""

    def hold_state(self, held: HeldMemory) -> None:
        """Take what lives between two steps, and the gradients of earlier micro-batches."""

    def enter(self, held: HeldMemory, segment: str, layer: int) -> None:
        """Do what comes before a segment; `layer` is -1 for `start` and `head`."""

    def leave(self, held: HeldMemory, segment: str, layer: int) -> None:
        """Do what comes after a segment."""

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        """Take a new gradient of a whole weight."""

    def complete_gradient(self, held: HeldMemory, size: int) -> None:
        """Do what comes when autograd has accumulated a gradient."""

    def update(self, held: HeldMemory) -> None:
        """Do what the optimizer's step needs."""


class ProductRules(Rules, Protocol):
    """Of a strategy that also acts before and after each product of a weight."""

    def begin_product(self, held: HeldMemory, product: Allocation) -> None:
        """Do what comes before a product copies its weight to 16 bits."""

    def end_product(self, held: HeldMemory, product: Allocation) -> None:
        """Do what comes after it has freed the copy."""


@dataclass
class HeldMemory:
    """Bytes held, by cause, and the fullest moment of each window."""

    held: Counter[str] = field(default_factory=Counter)
    total: int = 0
    window: str = ""
    fullest: dict[str, tuple[int, dict[str, int]]] = field(default_factory=dict)
    """Window -> (bytes, the same by cause)."""
    host: Counter[str] = field(default_factory=Counter)
    """Bytes in host memory, by cause (offload); a step frees none of them."""
    _seen: int = -1
    _cached: Counter[str] = field(default_factory=Counter)
    """Copies of weights that autocast keeps."""

    def take(self, cause: str, size: int) -> None:
        """Allocate."""
        self.held[cause] += size
        self.total += size

    def keep(self, cause: str, size: int, on_host: bool) -> None:
        """Allocate what a strategy may offload."""
        if on_host:
            self.host[cause] += size
        else:
            self.take(cause, size)

    def touch(self, cause: str, size: int) -> None:
        """Allocate, and free before anything else."""
        if self.total + size > self._seen:
            self._remember(size, {cause: size})

    def free(self, cause: str, size: int) -> None:
        """Free; the moment before it may be the fullest."""
        if self.total > self._seen:
            self.look()
        self.held[cause] -= size
        self.total -= size

    def look(self) -> None:
        """Remember this moment if it is the fullest of its window."""
        if self.total > self._seen:
            self._seen = self.total
            self.fullest[self.window] = self.total, dict(self.held)

    def begin(self, window: str) -> None:
        """Begin a window, or return to it."""
        self.look()
        self.window = window
        self._seen = self.fullest[window][0] if window in self.fullest else -1

    def jump(self, before: HeldMemory, times: int) -> None:
        """Repeat `times` what has changed since `before`."""
        for cause in [*self.held]:
            change = times * (self.held[cause] - before.held[cause])
            self.held[cause] += change
            self.total += change
            self._cached[cause] += times * (self._cached[cause] - before._cached[cause])
        for cause in [*self.host]:
            self.host[cause] += times * (self.host[cause] - before.host[cause])

    def copy(self) -> HeldMemory:
        """Return what is held now."""
        return HeldMemory(Counter(self.held), host=Counter(self.host), _cached=Counter(self._cached))

    def play(self, parts: Sequence[Stretch | Allocation], rules: Rules) -> None:
        """Take and free what a segment does."""
        for part in parts:
            if isinstance(part, Stretch):
                if self.total + part.most_bytes > self._seen:
                    self._remember(part.most_bytes, part.most)
                self.total += part.net_bytes
                for cause, size in part.net.items():
                    self.held[cause] += size
            elif part.kind == CACHED:
                self.take(part.cause, part.bytes)
                self._cached[part.cause] += part.bytes
            elif part.kind == COPY:
                self._copy(part, cast(ProductRules, rules))  # others have no copies apart (Measured.parts)
            elif part.taken:
                rules.take_gradient(self, part.bytes)
            else:
                rules.complete_gradient(self, part.bytes)

    def clear_cache(self) -> None:
        """Free what autocast has kept, at the end of a forward pass."""
        for cause, size in self._cached.items():
            self.free(cause, size)
        self._cached.clear()

    def _copy(self, product: Allocation, rules: ProductRules) -> None:
        if product.taken:
            rules.begin_product(self, product)
            self.take(product.cause, product.bytes)
        else:
            self.free(product.cause, product.bytes)
            rules.end_product(self, product)

    def _remember(self, further_bytes: int, further: Mapping[str, int]) -> None:
        """Remember a moment at which more is held than now."""
        self._seen = self.total + further_bytes
        held = dict(self.held)
        for cause, size in further.items():
            held[cause] = held.get(cause, 0) + size
        self.fullest[self.window] = self._seen, held


@dataclass(frozen=True)
class StepMemory:
    """The fullest moments of a step, by window; bytes by cause."""

    windows: Mapping[str, tuple[int, Mapping[str, int]]]
    host: Mapping[str, int] = field(default_factory=dict)
    """Bytes in host memory, by cause (offload)."""
    rank: int = 0
    """The fullest one."""

    @property
    def peak(self) -> tuple[int, Mapping[str, int]]:
        return max(self.windows.values(), key=lambda moment: moment[0])


def simulate(
    measured: Measured, rules: Rules, layers: int, micro_batches: int, earlier: Rules | None = None
) -> StepMemory:
    """Return the memory of one rank in a step.

    Args:
        rules: of the last micro-batch.
        layers: of the model on this rank.
        earlier: of a micro-batch before it; None = it holds no more.
    """
    fullest: dict[str, tuple[int, dict[str, int]]] = {}
    names = [name_layer(measured.segments, at, layers) for at in range(layers)]
    order = [("start", -1), *((name, at) for at, name in enumerate(names)), ("head", -1)]
    for one in [rules] if earlier is None else [earlier, rules]:
        held = HeldMemory(fullest=fullest)
        one.hold_state(held)
        held.take("data", measured.data_bytes * micro_batches)
        held.begin("forward")
        play_segments(held, measured, one, order, FORWARD)
        held.clear_cache()
        held.begin("backward")
        play_segments(held, measured, one, order[::-1], BACKWARD)
    held.begin("optimizer")
    rules.update(held)
    held.look()
    return StepMemory(fullest, held.host)


ALIKE = 4
"""Layers of a row of equal ones that are played: three, then the last one after a jump over the others."""


def play_segments(
    held: HeldMemory, measured: Measured, rules: Rules, order: Sequence[tuple[str, int]], direction: str
) -> None:
    """Play segments. A row of equal layers changes what is held by the same amount with each, so its fullest moment is
    in one of the first or in the last layer.
    """
    middle = sum(name == "middle" for name, _ in order)
    skipped = max(0, middle - ALIKE) if direction in rules.repeats else 0
    alike, before = 0, held
    for name, layer in order:
        if skipped and name == "middle":
            alike += 1
            if alike == ALIKE - 1:
                before = held.copy()
            elif alike == ALIKE:
                held.jump(before, skipped)
            if ALIKE <= alike < ALIKE + skipped:
                continue
        segment = name + direction
        rules.enter(held, segment, layer)
        held.play(measured.parts(segment, rules.copies, rules.follows_products), rules)
        rules.leave(held, segment, layer)
    held.look()
