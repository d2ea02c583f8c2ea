"""The order in which a micro-batch calls the modules of a model, as DeepSpeed's stage 3 traces it.

    gradients of a layer in the backward pass, reversed ─▶ its modules' weights in the forward pass
    all layers forward, then backward ─▶ calls: one weight after the other (record_module, record_parameters in
                                                deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py)

Each weight counts as a module of its own, except those of a module with several products: experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from stratlab_spec.memory.recording import (
    BACKWARD,
    COPY,
    GRADIENT,
    HALF,
    Measured,
    NotRecorded,
    Weight,
    name_layer,
    round_up,
)
from stratlab_spec.memory.strategy_rules import list_blocks

START, HEAD = -2, -1
"""Places of the weights outside layers."""
ROUTERS = (".gate.weight", ".router.weight")
"""Ends of the names of weights that choose a token's experts."""


@dataclass
class ModuleTrace:
    """Weights by number, in the model's order, and the calls of their modules.

    Attributes:
        places: layer, START or HEAD -> its weights.
        head: of the loss's product; that of the embedding if they are tied.
        calls: weights in the order of the calls.
        is_backward: of each call.
        modules: of each weight, those that are fetched and released with it.
        begins, ends: of each call, the first call of its module, and the one after its last.
        early: calls in the backward pass after which their layer is computed again.
        without_last: layers that are computed again but for their last product, of which no gradient needs the result.
        next_use: of each call, the next one of the same weight; None = there is none.
        elements, whole_bytes, copied_bytes: of each weight; its bytes in fp32 and in 16 bits.
        weight_of_size: (place, bytes in fp32) -> the first such weight.
        elements_of_place: of all its weights.
        elements_before: of all weights called before a call, without experts.
        elements_with_experts: the same with them.
        multiplies: of each weight, whether its module's product shows in the recording.
        next_product: of each call, the first weight that multiplies from it on; None = there is none.
        leaves_module: whether the next call is outside the module around the module of a call.
        stays: DeepSpeed's limits -> call -> whether its weight stays (zero3_rules.py).

    Raises:
        NotRecorded: the recording's products or gradients are not those of its weights.
    """

    measured: Measured
    layers: int
    places: dict[int, list[int]] = field(default_factory=dict)
    weights: list[Weight] = field(default_factory=list)
    early: set[int] = field(default_factory=set)
    without_last: set[int] = field(default_factory=set)
    stays: dict[tuple[int, ...], dict[int, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        each = self.measured.weights
        groups = {START: each["start"], **dict(enumerate(list_blocks(each, self.layers)))}
        for place, group in (groups | {HEAD: each["head"]}).items():
            self.places[place] = list(range(len(self.weights), len(self.weights) + len(group)))
            self.weights += group
        self._names = {weight.name for weight in self.weights}
        self.elements = [weight.elements for weight in self.weights]
        self.whole_bytes = [weight.whole_bytes for weight in self.weights]
        self.copied_bytes = [round_up(HALF * size) for size in self.elements]
        self.weight_of_size = {
            (place, self.whole_bytes[at]): at for place, group in self.places.items() for at in group[::-1]
        }
        self.elements_of_place = {
            place: sum(self.elements[at] for at in group) for place, group in self.places.items()
        }
        self.multiplies = [weight.product for weight in self.weights]
        self.modules = self._find_modules()
        self.embedding = next((at for at in self.places[START] if self.multiplies[at]), 0)
        products = (at for at in reversed(self.places[HEAD]) if self.multiplies[at])
        self.head = next(products, self.embedding)
        self._list_calls()
        counted = (self.elements[at] * (not self._is_leaf(at)) for at in self.calls)
        self.elements_before = [*accumulate(counted, initial=0)]
        self.elements_with_experts = [*accumulate((self.elements[at] for at in self.calls), initial=0)]
        self.first_backward = self.is_backward.index(True)
        self._look_ahead()

    def _find_modules(self) -> list[list[int]]:
        """Return of each weight all weights of its module, if several of them multiply; else only itself."""
        modules = [[at] for at in range(len(self.weights))]
        for group in self.places.values():
            found: dict[str, list[int]] = {}
            for at in group:
                found.setdefault(self.weights[at].name.rpartition(".")[0], []).append(at)
            for module in found.values():
                if sum(self.multiplies[at] for at in module) > 1:
                    for at in module:
                        modules[at] = module
        return modules

    def _is_leaf(self, weight: int) -> bool:
        """Return whether a weight is of experts in a leaf module, which others' distances do not count.

        DeepSpeed's leaves are the blocks of Mixtral and Qwen (leaf_module_config.py): their routers are named gate.
        """
        module = self.modules[weight]
        block = self.weights[weight].name.rsplit(".", 2)[0]
        return len(module) > 1 and f"{block}.gate.weight" in self._names

    def _join_modules(self, order: Sequence[int]) -> list[int]:
        """Return weights with all others of their modules, in the order in which DeepSpeed numbers them."""
        return [*dict.fromkeys(one for at in order for one in self.modules[at])]

    def _look_ahead(self) -> None:
        """Find what follows each call."""
        self.begins: list[int] = []
        self.ends: list[int] = []
        for weight in self.calls:
            self.begins.append(len(self.begins) - self.modules[weight].index(weight))
            self.ends.append(self.begins[-1] + len(self.modules[weight]))
        self.next_use: list[int | None] = [None] * len(self.calls)
        self.next_product: list[int | None] = [None] * (len(self.calls) + 1)
        later: dict[int, int] = {}
        for at, weight in reversed([*enumerate(self.calls)]):
            self.next_use[at] = later.get(weight)
            later[weight] = at
            self.next_product[at] = weight if self.multiplies[weight] else self.next_product[at + 1]
        modules = [weight.name.rsplit(".", 2)[0] for weight in self.weights]
        following = [*self.calls[1:], self.calls[-1]]
        self.leaves_module = [
            modules[one] != modules[other] for one, other in zip(self.calls, following, strict=True)
        ]

    def _list_calls(self) -> None:
        """List the calls.

        A block is computed again when the backward pass of its last module asks for its input; by then that module's
        hook has fetched its weight.
        """
        layers = {at: name_layer(self.measured.segments, at, self.layers) for at in range(self.layers)}
        segments = {START: "start", **layers, HEAD: "head"}
        for place, name in layers.items():
            self._find_routers(place, name)
        orders: dict[int, list[int]] = {}
        known: dict[str, list[int]] = {}  # one order for all equal layers, as numbers inside a layer
        for place, name in segments.items():
            group = self.places[place]
            if name not in known:
                known[name] = [group.index(at) for at in self._order(place, name)]
            orders[place] = self._join_modules([group[at] for at in known[name]])
        orders[HEAD].append(self.head)  # it may be tied, and its gradient may come in the forward pass
        rows = [(weight, False) for order in orders.values() for weight in order]
        for place, name in reversed(segments.items()):
            if place == START and not any(self.weights[at].trains for at in self.places[place]):
                continue
            order, is_recomputed = orders[place], place in layers and self._is_recomputed(place, name)
            back = [*reversed(order)]
            if place in layers and self._is_frozen(place):  # those whose input needs a gradient
                products = sum(self.multiplies[weight] for weight in order)
                back = self._match_copies(back, name + BACKWARD, skipped=is_recomputed * products)
            back = self._join_modules(back)
            first = len(self.modules[back[0]]) if back else 0
            if is_recomputed and not self.multiplies[back[0]] and self._has_same_module(*back[:2]):
                first += 1  # its bias comes before
            rows += [(weight, True) for weight in back[:first]]
            if is_recomputed:
                self.early.update(range(len(rows) - first, len(rows)))
                rows += [(weight, False) for weight in order]
            rows += [(weight, True) for weight in back[first:]]
        self.calls = [weight for weight, _ in rows]
        self.is_backward = [backward for _, backward in rows]

    def _order(self, place: int, segment: str) -> list[int]:
        """Return the weights of a segment in the order of their modules; with frozen ones, a layer's products only."""
        waiting = [at for at in self.places[place] if place != HEAD or at != self.head]
        if self._is_frozen(place):
            if place in (START, HEAD):  # products first, then what is added to them
                return sorted(waiting, key=lambda at: (not self.weights[at].product, self.whole_bytes[at]))
            return self._match_copies(waiting, segment)
        found = []
        for event in reversed(self.measured.segments.get(segment + BACKWARD, ())):
            if event.kind != GRADIENT or not event.taken:
                continue
            at = next((at for at in waiting if self.whole_bytes[at] == event.bytes), None)
            if at is not None:
                found.append(at)
                waiting.remove(at)
        if waiting:
            raise NotRecorded(f"{self.weights[waiting[0]].name}: no gradient")
        return found

    def _find_routers(self, place: int, segment: str) -> None:
        """Find weights that multiply in their own type: marks are more than the products' weights need."""
        products = [at for at in self.places[place] if self.multiplies[at]]
        others = [at for at in self.places[place] if self.weights[at].name.endswith(ROUTERS)]
        if self._count_products(place, segment) == len(products) + len(others):
            for at in others:
                self.multiplies[at] = True

    def _count_products(self, place: int, segment: str) -> int:
        """Return the number of copies and marks of products."""
        sizes = {0, *(self.copied_bytes[at] for at in self.places[place] if self.weights[at].product)}
        events = self.measured.segments[segment]
        return sum(event.kind == COPY and event.taken and event.bytes in sizes for event in events)

    def _has_same_module(self, one: int, other: int) -> bool:
        return self.weights[one].name.rpartition(".")[0] == self.weights[other].name.rpartition(".")[0]

    def _is_frozen(self, place: int) -> bool:
        """Return whether some weights do not train."""
        return not all(self.weights[at].trains for at in self.places[place])

    def _match_copies(self, weights: list[int], segment: str, skipped: int = 0) -> list[int]:
        """Return the products among weights in the order of their copies, after the first `skipped` copies."""
        waiting = [at for at in weights if self.multiplies[at]]
        sizes = {0, *(self.copied_bytes[at] for at in waiting)}
        found = []
        for event in self.measured.segments[segment]:
            if event.kind != COPY or not event.taken or event.bytes not in sizes:
                continue
            alike = [at for at in waiting if event.bytes in (0, self.copied_bytes[at])]
            if skipped:
                skipped -= 1
            elif alike:
                found.append(alike[0])
                waiting.remove(alike[0])
        return found

    def _is_recomputed(self, place: int, segment: str) -> bool:
        """Return whether the backward pass of a layer calls its modules again."""
        products = sum(self.multiplies[at] for at in self.places[place])
        forward, backward = (self._count_products(place, segment + each) for each in ("", BACKWARD))
        is_known = backward <= 2 * forward if self._is_frozen(place) else backward in (forward, 2 * forward)
        if backward == 2 * forward - 1 > forward and not self._is_frozen(place):
            self.without_last.add(place)
            is_known = True
        if forward != products or not is_known:
            raise NotRecorded(f"{segment}: {products} products make {forward} and {backward} copies")
        return backward > forward

    def distance(self, at: int, asked: int = 0) -> float:
        """Return the elements of the calls between one and the next one of the same weight.

        Args:
            asked: elements that the outermost module asks for, whose call begins the backward pass.
        """
        again = self.next_use[at]
        if again is None:
            return math.inf
        turns = at < self.first_backward <= again
        before = self.elements_before
        if self._is_leaf(self.calls[at]):  # which counts all that is in each module
            before, asked = self.elements_with_experts, 0
        return before[self.begins[again]] - before[self.ends[at]] + asked * turns
