"""Record what one micro-batch allocates and frees, with every size as a product of the model's sizes.

    several draws of sizes ─▶ record_step: the run's own engine on tensors without storage ─▶ events by segment
                           ─▶ SizeFit: the product of symbols that gives each event's bytes in every draw ─▶ Recording

The draws differ in all sizes, and the events must not. A size that no product explains is an error. What a strategy
allocates is left out (stratlab_spec/memory/strategy_rules.py knows it); the activations depend on how it holds weights,
so each of FLAVORS is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from stratlab_spec.memory.recording import (
    BACKWARD,
    CACHED,
    COPY,
    GRADIENT,
    LAYERS,
    PLAIN,
    Recording,
)
from stratlab_spec.models.pictures import Pictures
from stratlab_spec.settings.config import Config
from trainer.distributed.world import Precision
from trainer.engines import torch_engine
from trainer.memory_estimation import steps
from trainer.memory_estimation.size_fit import SizeFit, UnequalSteps
from trainer.memory_estimation.steps import build_empty_model, build_micro_batch, count_batches
from trainer.memory_estimation.storages import HALF, StorageWatch, is_on_meta, replaced
from trainer.memory_estimation.timeline import Label, Storage
from trainer.models.mixed_precision import apply_gathered_linears, is_product_weight
from trainer.models.model_with_loss import Learner

OF_STRATEGY = ("parameters", "gathered", "gradient buckets", "master copies", "optimizer state")
"""Causes of storages that a strategy allocates."""
PRODUCTS = ("mm", "addmm", "bmm", "_grouped_mm", "convolution", "convolution_backward")
MARK = "product"
"""Operator of the empty copy around a product whose weight is not copied for it alone."""
NEEDLESS = "needless"
"""Kind of a mark that is left out."""
CAUSES = {COPY: "low-precision copies", CACHED: "low-precision copies", GRADIENT: "gradients"}
"""Kind of an event -> its cause, where the kind decides it."""


class RecordingWatch(StorageWatch):
    """Also know the segment of each event, the copies of weights, and the gradients of whole weights."""

    def __init__(self) -> None:
        super().__init__(block_bytes=1)
        self.learner: Any = None
        self.blocks: list[nn.Module] = []
        self._places: list[tuple[int, str]] = []
        self._kinds: dict[int, str] = {}
        self._begun: dict[int, int] = {}
        self._weights: set[int] = set()
        self._products: list[tuple[Storage, list[Storage], list[int]]] = []
        self._marked = -1
        self._kept: set[int] = set()

    def observe(self, engine: Any) -> None:
        self.learner = next(part for part in engine.module.modules() if isinstance(part, Learner))
        self.blocks = list(self.learner.blocks())
        last = len(self.blocks) - 1
        for at, block in enumerate(self.blocks):
            block.register_forward_pre_hook(self._before(at))
            block.register_forward_hook(self._after(at, last))
        for parameter in engine.module.parameters():
            self._weights.add(parameter.untyped_storage()._cdata)
            if parameter.requires_grad:
                parameter.register_hook(self._is_gradient)

    def _enter(self, segment: str) -> None:
        self._places.append((len(self.timeline.events), segment))

    def begin(self, phase: str) -> None:
        super().begin(phase)
        names = {"forward": "start", "backward": f"head{BACKWARD}", "optimizer": "optimizer"}
        if phase in names:
            self._enter(names[phase])

    def _before(self, at: int) -> Any:
        def before(_: Any, given: Any) -> None:
            if self.phase != "forward":  # computed again in the backward pass
                return
            self._enter(str(at))
            if at == 0 and given and isinstance(given[0], Tensor) and given[0].requires_grad:
                given[0].register_hook(lambda _: self._enter(f"start{BACKWARD}"))

        return before

    def _after(self, at: int, last: int) -> Any:
        def after(_: Any, __: Any, output: Any) -> None:
            if self.phase != "forward":
                return
            self._enter(str(at + 1) if at < last else "head")
            stream = output[0] if isinstance(output, tuple) else output
            if isinstance(stream, Tensor) and stream.requires_grad:
                stream.register_hook(lambda _: self._enter(f"{at}{BACKWARD}"))

        return after

    def _is_gradient(self, gradient: Tensor) -> None:
        if found := self._find(gradient):
            self._kinds[id(found)] = GRADIENT

    def see(self, tensor: Tensor, operator: str, sources: Any = ()) -> None:
        events = len(self.timeline.events)
        if operator in PRODUCTS and (mark := self._mark_product(sources)):
            self.timeline.resize(mark, 1)
            super().see(tensor, operator, sources)
            self.timeline.resize(mark, 0)
            return
        super().see(tensor, operator, sources)
        if len(self.timeline.events) == events or operator != "_to_copy" or tensor.dtype not in HALF:
            return
        if self._find_weight(sources[0]):
            self._kinds[id(self.timeline.events[-1][1])] = COPY

    def _find_weight(self, source: Any) -> int:
        """Return the storage of a weight; 0 = it is none."""
        source = getattr(source, "_local_tensor", source)
        if not isinstance(source, Tensor) or is_on_meta(source):
            return 0
        found = source.untyped_storage()._cdata
        return found if found in self._weights else 0

    def _mark_product(self, sources: Any) -> Storage | None:
        """Return a mark for a product with a weight or with its copy; one for all its results."""
        if not self.learner:
            return None
        copies = [found for one in sources if (found := self._find(one)) and id(found) in self._kinds]
        copies = [found for found in copies if self._kinds[id(found)] == COPY]
        weights = [number for one in sources if (number := self._find_weight(one))]
        if self._marked == self.operators or not (copies or weights):
            return None
        self._marked = self.operators
        mark = Storage(Label(self.phase, MARK, "", ()), CAUSES[COPY], final=True)
        self._kinds[id(mark)] = COPY
        self._products.append((mark, copies, weights))
        return mark

    def _settle_marks(self) -> None:
        """Drop the marks of products whose copies are made and freed for them alone: these mark them.

        Others begin before the copies that are made for them, which stay for later ones: these are activations.
        """
        uses: dict[int, list[str]] = {}
        for mark, copies, _ in self._products:
            for one in copies:
                uses.setdefault(id(one), []).append(mark.label.phase)
        events, at_end = self.timeline.events, len(self.timeline.events)
        begins = {id(one): at for at, (size, one) in reversed([*enumerate(events)]) if size > 0}
        ends = {id(one): at for at, (size, one) in enumerate(events) if size < 0}
        before, moved = 0, {}
        first, multiplied = None, 0  # mark and weight of the last product without copies, in a forward pass
        for mark, copies, weights in self._products:
            after = ends[id(mark)]
            freed = max((ends.get(id(one), at_end) for one in copies), default=at_end)
            is_brief = all(size < 0 for size, _ in events[after:freed])
            is_brief = is_brief and all(len(uses[id(one)]) == 1 for one in copies)
            # the loss computes its gradient in the forward pass, from the same copy
            is_of_loss = any(uses[id(one)][1:] and {*uses[id(one)]} == {"forward"} for one in copies)
            if not copies and mark.label.phase == "forward":
                if first and weights[0] == multiplied:  # of the loss: the first one lasts to the end of all
                    self._kinds[id(mark)] = NEEDLESS
                    at = ends[id(first)]
                    events[at], events[after] = events[after], events[at]
                    ends[id(first)] = after
                    continue
                first, multiplied = mark, weights[0]
            else:
                first = None
            if copies and (is_brief or is_of_loss):
                self._kinds[id(mark)] = NEEDLESS
                continue
            begun = min((begins[id(one)] for one in copies), default=0)
            if begun > before:
                moved[id(mark)] = begun
            self._kept |= {id(one) for one in copies}
            before = after
        for mark, *_ in reversed(self._products):
            if id(mark) in moved:
                events.insert(moved[id(mark)], events.pop(begins[id(mark)]))

    def list_segments(self) -> dict[str, list[tuple[str, int, Storage]]]:
        """Return segment -> (kind, bytes taken or freed, storage) of the last micro-batch."""
        self._settle_marks()
        starts = [i for i, (_, name) in enumerate(self._places) if name == "start"]
        places = self._places[starts[-1] :]
        end = next(at for at, name in places if name == "optimizer")
        found: dict[str, list[tuple[str, int, Storage]]] = {}
        for (at, name), (until, _) in zip(places, [*places[1:], (end, "")], strict=True):
            if name == "optimizer":
                break
            rows = found.setdefault(name, [])
            for size, storage in self._sort_ends(self.timeline.events[at : min(until, end)]):
                kind = self._kinds.get(id(storage), PLAIN)
                if storage.cause == "gradients":
                    kind = GRADIENT
                if kind != NEEDLESS and not storage.on_host and (kind or storage.cause not in OF_STRATEGY):
                    rows.append((kind, size, storage))
        return self._mark_cached(found)

    def _mark_cached(
        self, segments: dict[str, list[tuple[str, int, Storage]]]
    ) -> dict[str, list[tuple[str, int, Storage]]]:
        """Mark the copies that layers take and the end of the forward pass frees; other kept ones are activations."""
        taken = {
            id(storage)
            for name, rows in segments.items()
            for kind, size, storage in rows
            if name.isdecimal() and kind == COPY and size > 0
        }
        cached = {id(storage) for _, size, storage in segments["head"] if size < 0} & taken
        kinds = dict.fromkeys(self._kept, PLAIN) | dict.fromkeys(cached, CACHED)
        return {
            name: [
                (kinds.get(id(storage), kind), size, storage)
                for kind, size, storage in rows
                if size > 0 or id(storage) not in cached
            ]
            for name, rows in segments.items()
        }

    def _sort_ends(self, events: Sequence[tuple[int, Storage]]) -> Iterator[tuple[int, Storage]]:
        """Yield events; ends in a row by the beginning of their storage, because Python's order of them varies."""
        if not self._begun:
            for place, (size, storage) in enumerate(self.timeline.events):
                if size > 0:  # a mark ends first
                    self._begun.setdefault(id(storage), -1 if storage.label.operator == MARK else place)
        ends: list[tuple[int, Storage]] = []
        for event in events:
            if event[0] < 0:
                ends.append(event)
                continue
            yield from sorted(ends, key=lambda one: self._begun[id(one[1])])
            ends = []
            yield event
        yield from sorted(ends, key=lambda one: self._begun[id(one[1])])

    def list_weights(self) -> dict[str, list[tuple[str, tuple[int, ...], bool, bool]]]:
        """Return place -> (name, shape, of a product, trained): `start`, each layer's number, `head`."""
        owner = {id(p): at for at, block in enumerate(self.blocks) for p in block.parameters()}
        found: dict[str, list[tuple[str, tuple[int, ...], bool, bool]]] = {"start": [], "head": []}
        seen: set[int] = set()
        place = "start"
        for path, module in self.learner.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                at = owner.get(id(parameter))
                place = "head" if at is not None or place == "head" else "start"
                if id(parameter) in seen:  # tied
                    continue
                seen.add(id(parameter))
                shape = _own_shape(parameter)
                row = (f"{path}.{name}", shape, is_product_weight(module, name), parameter.requires_grad)
                found.setdefault(place if at is None else str(at), []).append(row)
        return found


def _own_shape(parameter: Any) -> tuple[int, ...]:
    """Return the shape of a whole parameter; with tp, of this rank's rows and columns."""
    shape = list(getattr(parameter, "ds_shape", parameter.shape))
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        for at, (name, placement) in enumerate(zip(names, parameter.placements, strict=True)):
            if name == "tp" and isinstance(placement, Shard):
                shape[placement.dim] //= parameter.device_mesh.size(at)
    return tuple(shape)


@dataclass(frozen=True)
class RecordedStep:
    """One draw."""

    segments: Mapping[str, list[tuple[str, int, str, Label]]]
    """Segment -> (kind, bytes taken or freed, cause, label)."""
    weights: Mapping[str, list[tuple[str, tuple[int, ...], bool, bool]]]
    data_bytes: Sequence[int]
    """Of the inputs, and of the labels."""
    sizes: Mapping[str, int]


def record_step(
    config: Config,
    ranks: int,
    sizes: Mapping[str, int],
    pictures: Pictures,
    rank: int = 0,
    gathered: bool = False,
) -> RecordedStep:
    """Record one micro-batch of a run; a step must have two.

    Args:
        gathered: with the linear layers of stage 3.

    Raises:
        ConfigError, DataMissing: as `count_batches`.
    """
    watch = RecordingWatch()
    # neither the optimizer's step nor its state changes an activation
    with (
        replaced(steps, STEPS=1, build_empty_model=partial(_build_model, gathered)),
        replaced(torch_engine, step_optimizer=lambda *_: None),
    ):
        count_batches([config], ranks, rank, pictures, watch=watch)
    segments = {
        name: [(kind, size, CAUSES.get(kind, one.cause), one.label) for kind, size, one in rows]
        for name, rows in watch.list_segments().items()
    }
    given = build_micro_batch(config, pictures)
    return RecordedStep(segments, watch.list_weights(), [one.nbytes for one in given], sizes)


def _build_model(gathered: bool, config: Config, pictures: Pictures) -> Learner:
    """Return the run's model; in DeepSpeed's own bf16 as its engines have it."""
    model = build_empty_model(config, pictures)
    if gathered:
        apply_gathered_linears(model)
    if config.precision == "bf16_native":
        model.to(torch.bfloat16)
        cast = Precision("bf16_native").cast_input
        model.register_forward_pre_hook(lambda _, given: (cast(given[0]), *given[1:]))
    return model


def build_recording(
    settings: Mapping[str, Any], draws: Sequence[RecordedStep], alone: Sequence[str]
) -> Recording:
    """Return the recording that explains all draws.

    A model of repeated layers keeps the first, the second, the third and the last one.

    Raises:
        UnexplainedSize, UnequalSteps: it cannot be explained by products of sizes.
    """
    fit = SizeFit([draw.sizes for draw in draws], alone)
    names = _name_layers(draws[0], bool(settings.get("repeats")))
    segments = {}
    for name, kept in names.items():
        if any(name not in draw.segments for draw in draws):
            continue
        rows = [draw.segments[name] for draw in draws]
        if len({tuple((row[0], row[1] > 0, row[3].operator) for row in each) for each in rows}) > 1:
            raise UnequalSteps(f"{name}: {[len(each) for each in rows]} events")
        segments[kept] = [
            (same[0][1] > 0, same[0][0], same[0][2], _explain(fit, same)) for same in zip(*rows, strict=True)
        ]
    weights = {}
    for place, kept in names.items():
        if place not in draws[0].weights or (kept in LAYERS and kept != "middle"):
            continue
        found = []
        for alike in zip(*(draw.weights[place] for draw in draws), strict=True):
            name, shape, product, trains = alike[0]
            sizes = [fit.explain([row[1][dim] for row in alike]) for dim in range(len(shape))]
            found.append((name, sizes, product, trains))
        weights["layer" if kept == "middle" else kept] = found
    return Recording(
        settings,
        weights,
        segments,
        [fit.explain(sizes) for sizes in zip(*(draw.data_bytes for draw in draws), strict=True)],
    )


def _explain(fit: SizeFit, same: Sequence[tuple[str, int, str, Label]]) -> str:
    """Return the size of an event from its bytes in all draws; that of a mark is 0."""
    return "0" if same[0][3].operator == MARK else fit.explain_bytes([abs(event[1]) for event in same])


def _name_layers(draw: RecordedStep, repeats: bool) -> dict[str, str]:
    """Return the recorded segments' names -> the kept ones."""
    layers = max(int(name) for name in draw.weights if name.isdecimal()) + 1
    kept = {at: name for at, name in enumerate(LAYERS)} if repeats else {at: str(at) for at in range(layers)}
    found = {str(at): name for at, name in kept.items()} | {"start": "start", "head": "head"}
    return found | {name + BACKWARD: kept + BACKWARD for name, kept in found.items()}
