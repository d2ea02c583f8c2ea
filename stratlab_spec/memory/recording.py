"""Recorded steps: what one micro-batch allocates and frees, with every size as a product of the model's sizes.

`python -m trainer.record` writes them from the run's own engine on tensors without storage. One recording serves every
size of a family: each event holds a coefficient and symbols, for example `4 R T H` for fp32 states of R rows.

    settings ─▶ find_recording ─▶ Recording ─▶ measure (sizes in bytes) ─▶ simulation.py

A recording holds what the model does. What a strategy does (gathers, buckets, shards) is not in it.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

FP32, HALF = 4, 2
"""Bytes of an element."""
BLOCK_BYTES = 512
"""Of CUDA's caching allocator (c10/core/AllocatorConfig.h, kMinBlockSize): every size is rounded up to whole blocks."""
WORK = "work"
"""Name of a file's part for step_time/recorded_work.py."""
MOST_KEPT = 64
"""Measured recordings at a time, for the same model under several strategies and numbers of GPUs."""
FOLDER = Path(__file__).with_name("recordings")
FORWARD, BACKWARD = "", " backward"
"""Ends of the name of a segment in each pass. Segments of a forward pass, in order: `start`, the layers (`first`,
`second`, `middle`, `last`, or their numbers if they differ), `head`."""
KINDS = PLAIN, COPY, GRADIENT, CACHED = "", "copy", "gradient", "cached copy"
"""Kinds of events: an activation; a 16-bit copy of a weight for one product; the gradient of a weight; a copy that
autocast keeps to the end of the forward pass (no event ends it)."""


class NotRecorded(LookupError):
    """No recording answers; the text says which setting is not in one."""


class Size(NamedTuple):
    """A number as `coefficient x symbols`."""

    coefficient: Fraction
    symbols: tuple[str, ...]

    def value(self, sizes: Mapping[str, int]) -> int:
        """Return it for these sizes, rounded up."""
        found = self.coefficient.numerator * prod(sizes[name] for name in self.symbols)
        return -(-found // self.coefficient.denominator)

    def __str__(self) -> str:
        return " ".join((str(self.coefficient), *self.symbols))


@cache
def parse_size(text: str) -> Size:
    """Return the size that `str` has written."""
    coefficient, *symbols = text.split(" ")
    return Size(Fraction(coefficient), tuple(symbols))


class Allocation(NamedTuple):
    """One allocation, or the end of one."""

    taken: bool
    kind: str
    """One of KINDS."""
    cause: str
    bytes: int


@dataclass(frozen=True)
class Weight:
    """One parameter."""

    name: str
    """Inside its layer; of the whole model for the first and the last segment."""
    shape: tuple[int, ...]
    product: bool
    """Its module multiplies by it: strategies that gather weights gather it in 16 bits."""
    trains: bool
    element_bytes: int = FP32
    """Of the type in which the model has it."""

    @cached_property
    def elements(self) -> int:
        return prod(self.shape)

    @cached_property
    def whole_bytes(self) -> int:
        return round_up(self.element_bytes * self.elements)


@dataclass(frozen=True)
class Recording:
    """One micro-batch, by segments; sizes in symbols."""

    settings: Mapping[str, Any]
    """By which it was recorded, and for which alone it answers."""
    weights: Mapping[str, Sequence[Sequence[Any]]]
    """Of `start`, one `layer`, `head`: (name, sizes of its shape, product, trains), as Weight."""
    segments: Mapping[str, list[tuple[bool, str, str, str]]]
    """Name -> (taken, kind, cause, size) in order."""
    data: Sequence[str]
    """Bytes of one micro-batch's inputs, and of its labels."""
    _measured: dict[tuple[tuple[str, int], ...], Measured] = field(
        default_factory=dict, compare=False, repr=False
    )
    _traces: dict[Any, dict[int, Any]] = field(default_factory=dict, compare=False, repr=False)

    def measure(self, sizes: Mapping[str, int]) -> Measured:
        """Return it with sizes in whole blocks; the last few are kept."""
        key = tuple(sizes.items())
        if key not in self._measured:
            if len(self._measured) >= MOST_KEPT:
                self._measured.clear()
            self._measured[key] = self._measure(sizes)
        return self._measured[key]

    def _measure(self, sizes: Mapping[str, int]) -> Measured:
        @cache
        def measured(text: str) -> int:
            return round_up(max(0, parse_size(text).value(sizes)))

        @cache
        def allocate(event: tuple[bool, str, str, str]) -> Allocation:
            taken, kind, cause, text = event
            return Allocation(taken, kind, cause, measured(text))

        different = {id(events): events for events in self.segments.values()}  # equal segments are one list
        known = {name: [*map(allocate, events)] for name, events in different.items()}
        segments = {name: known[id(events)] for name, events in self.segments.items()}
        element_bytes = HALF if self.settings.get("precision") == "bf16_native" else FP32
        weights = {
            place: [
                Weight(
                    name,
                    tuple(parse_size(text).value(sizes) for text in shape),
                    product,
                    trains,
                    element_bytes,
                )
                for name, shape, product, trains in rows
            ]
            for place, rows in self.weights.items()
        }
        shapes = tuple((place, tuple(rows)) for place, rows in weights.items())
        traces = self._traces.setdefault(shapes, {})
        return Measured(segments, weights, sum(map(measured, self.data)), traces)


class Stretch(NamedTuple):
    """Events of activations in a row, as one."""

    net_bytes: int
    """Taken minus freed."""
    most_bytes: int
    """More than at its start, at its fullest moment."""
    net: Mapping[str, int]
    """`net_bytes` by cause."""
    most: Mapping[str, int]
    """`most_bytes` by cause."""


@dataclass(frozen=True)
class Measured:
    """A recording for one model and one micro-batch, in bytes."""

    segments: Mapping[str, list[Allocation]]
    weights: Mapping[str, list[Weight]]
    data_bytes: int
    traces: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    """Number of layers -> zero3_trace.ModuleTrace; of all batches of a model, because it depends on weights only."""
    _parts: dict[tuple[int, bool, bool], list[Stretch | Allocation]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def parts(self, segment: str, copies: bool, products: bool = False) -> list[Stretch | Allocation]:
        """Return a segment's events, those of activations as runs.

        Args:
            copies: whether products copy their weights.
            products: keep these copies apart too.
        """
        ends = segment == f"start{BACKWARD}"  # which frozen weights do not have
        found = self.segments.get(segment, NOTHING) if ends else self.segments[segment]
        key = id(found), copies, products  # equal segments are one list
        if key not in self._parts:
            events = (event for event in found if copies or event.kind not in (COPY, CACHED))
            apart = (GRADIENT, CACHED, COPY) if products else (GRADIENT, CACHED)
            self._parts[key] = [*_join(events, apart)]
        return self._parts[key]


NOTHING: list[Allocation] = []


def _join(events: Iterable[Allocation], apart: tuple[str, ...]) -> Iterator[Stretch | Allocation]:
    waiting: list[Allocation] = []
    for event in events:
        if event.kind not in apart:
            waiting.append(event)
            continue
        if waiting:
            yield _sum_up(waiting)
            waiting = []
        yield event
    if waiting:
        yield _sum_up(waiting)


def _sum_up(events: Sequence[Allocation]) -> Stretch:
    held: Counter[str] = Counter()
    total = most = 0
    fullest: Mapping[str, int] = {}
    for taken, _, cause, size in events:
        held[cause] += size if taken else -size
        total += size if taken else -size
        if total > most:
            most, fullest = total, dict(held)
    return Stretch(total, most, {cause: size for cause, size in held.items() if size}, fullest)


def round_up(size: int, block: int = BLOCK_BYTES) -> int:
    """Return whole blocks."""
    return -(-size // block) * block


LAYERS = ("first", "second", "middle", "last")
"""Two layers take before the others repeat: what the first one leaves may end only in the third one (Gemma)."""


def name_layer(recorded: Mapping[str, Any], layer: int, layers: int) -> str:
    """Return the segment of a layer: its number if all were recorded, else one of LAYERS."""
    if str(layer) in recorded:
        return str(layer)
    return "last" if layer == layers - 1 else "middle" if layer > 1 else LAYERS[layer]


class PackedSegments(Mapping[str, list[tuple[bool, str, str, str]]]):
    """A recording's events by segment, unpacked when one is asked for: a question needs one of a hundred recordings."""

    def __init__(
        self, places: Mapping[str, int], unpack: Callable[[int], list[tuple[bool, str, str, str]]]
    ) -> None:
        self._places, self._unpack = places, unpack

    def __getitem__(self, name: str) -> list[tuple[bool, str, str, str]]:
        return self._unpack(self._places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_recordings(path: Path) -> list[Recording]:
    """Return the recordings of one file, as `write_recordings` has written them."""
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    sizes, kinds, causes = content["sizes"], content["kinds"], content["causes"]
    parts = content["parts"]

    @cache
    def unpack_event(row: int) -> tuple[bool, str, str, str]:
        return row > 0, kinds[abs(row) % 4], causes[abs(row) // 4 % 16], sizes[abs(row) // 64]

    @cache
    def unpack(at: int) -> list[tuple[bool, str, str, str]]:
        return [*map(unpack_event, parts[at])]

    return [
        Recording(
            one["settings"],
            one["weights"],
            PackedSegments(one["segments"], unpack),
            one["data"],
        )
        for one in content["recordings"]
    ]


def write_recordings(path: Path, recordings: Sequence[Recording], versions: Mapping[str, str]) -> None:
    """Write one family's recordings; equal parts and sizes once. Its recorded work (step_time) stays in the file."""
    causes: list[str] = []
    sizes: list[str] = ["1"]
    parts: list[list[int]] = []
    rows: list[dict[str, Any]] = []

    def place(known: list[Any], item: Any) -> int:
        if item not in known:
            known.append(item)
        return known.index(item)

    for one in recordings:
        segments = {}
        for name, events in one.segments.items():
            packed = [
                (1 if taken else -1)
                * (KINDS.index(kind) + 4 * place(causes, cause) + 64 * place(sizes, text))
                for taken, kind, cause, text in events
            ]
            segments[name] = place(parts, packed)
        rows.append(
            {
                "settings": dict(one.settings),
                "weights": dict(one.weights),
                "segments": segments,
                "data": one.data,
            }
        )
    content = {
        "versions": dict(versions),
        "kinds": KINDS,
        "causes": causes,
        "sizes": sizes,
        "parts": parts,
        "recordings": rows,
    }
    if path.is_file():
        with gzip.open(path, "rt") as file:
            content |= {name: part for name, part in json.load(file).items() if name == WORK}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0))
