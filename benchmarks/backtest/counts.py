"""Turn a foreign engine's description, a decoder's shape and its layout into an operations file for `stratlab predict`.

Shapes and layouts come first, then the description (engines/*.toml: a rank's memory, item by item), then a few small
counts from which `predict` scales. They are chosen as the trainer does for its own engines: micro-batches of one and
two rows. Two small depths if stages are even, else the model's own. Two and four ranks of data parallelism, if there
are more. The first and the last stage.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratlab_spec.memory.extrapolation import Sample
from stratlab_spec.memory.profiles import OperationsFile

ENGINES = Path(__file__).with_name("engines")
WINDOWS = ("forward", "backward, begin", "backward, end")
"""As the trainer names them: all is saved and the loss is made; the loss and the head go back; the embedding does."""
UPDATE = "optimizer"
"""A window without activations, for engines that hold more in it."""
ROWS = (1, 2)


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped decoder. `tied`: the head is the embedding, if a rank has both."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool = False

    @property
    def kv(self) -> int:
        """Width of the keys, or of the values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def layer_weights(self) -> int:
        """Parameters of one layer, without the norms."""
        return 2 * self.hidden * (self.hidden + self.kv) + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden


@dataclass(frozen=True)
class Layout:
    """A decoder's layout on devices. `micro_batches`: of one step. `zero_stage`: 1 divides the optimizer."""

    dp: int
    tp: int
    pp: int
    cp: int
    zero_stage: int
    micro_batches: int
    tokens_per_row: int

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def sharers(self) -> int:
        """Ranks that share out the optimizer."""
        return self.dp * self.cp if self.zero_stage else 1

    def in_flight(self, stage: int) -> int:
        """Return micro-batches whose activations a stage holds at most under 1f1b."""
        return min(self.pp - stage, self.micro_batches)


def layers_of(shape: Shape, stages: int, how: str) -> list[int]:
    """Return the layers of each stage.

    "even": as many for each. "by cost": a stage is full when all weights up to here, the head's last, are more than
    its share, as in nanotron's build_model; the embedding counts as zero. "full first": each has the most of any until
    none are left. "ends as layers": the same, with embedding and head as a layer each.
    """
    if how == "even":
        assert shape.layers % stages == 0, f"{shape.layers} layers on {stages} stages"
        return [shape.layers // stages] * stages
    if how in ("full first", "ends as layers"):
        ends = how == "ends as layers"
        most = math.ceil((shape.layers + 2 * ends) / stages)
        places = [min(most, shape.layers + 2 * ends - stage * most) for stage in range(stages)]
        places[0] -= ends
        places[-1] -= ends
        return places
    found, stage = [0] * stages, 0
    whole = shape.layers * shape.layer_weights + shape.head_weights
    for number in range(1, shape.layers + 1):
        found[stage] += 1
        if number * shape.layer_weights > whole * (stage + 1) / stages:
            stage += 1
    return found


@dataclass(frozen=True)
class Held:
    """One item of the memory of a rank.

    Attributes:
        of: dimensions whose product, times `bytes`, is the whole item.
        split: its divisors: "tp", and "sharers", the ranks that divide the optimizer.
        each_layer: once for every layer of the stage and micro-batch in flight; else once.
        only: dimension -> the value for which the item exists; "several" is more than one.
        windows: when; empty = always.
    """

    what: str
    cause: str
    bytes: int
    of: Sequence[str]
    split: Sequence[str]
    each_layer: bool
    only: Mapping[str, str | int]
    windows: Sequence[str]
    source: str


@dataclass(frozen=True)
class Engine:
    """`stages`: how layers become stages (`layers_of`). `variants`: versions that hold different things."""

    name: str
    stages: str
    variants: Sequence[str]
    held: Sequence[Held]


def read_engine(name: str) -> Engine:
    """Return the description engines/<name>.toml."""
    content = tomllib.loads((ENGINES / f"{name}.toml").read_text())
    held = [
        Held(
            what=one["what"],
            cause=one["cause"],
            bytes=one["bytes"],
            of=one["of"],
            split=one.get("split", ()),
            each_layer=one.get("every") == "layer",
            only=one.get("only", {}),
            windows=one.get("windows", ()),
            source=one["source"],
        )
        for one in content["held"]
    ]
    return Engine(content["name"], content["stages"], content["variants"], held)


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a published table; its first lines name its source."""
    with open(path) as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def build_operations(engine: Engine, shape: Shape, layout: Layout, variant: str = "") -> OperationsFile:
    """Return the file of one model under one layout, for every micro-batch, depth and number of ranks."""
    even = engine.stages == "even"
    return OperationsFile(
        path=Path("not written"),
        key="",
        settings={
            "strategy": engine.name,
            "model": "decoder",
            "activation_checkpointing": "none",
            "lora_rank": 0,
        },
        defaults={},
        layers=shape.layers,
        scales_depth=even,
        scales_ranks=layout.dp > 1,
        accumulates=layout.micro_batches > 1,
        labels=0,
        channels=0,
        versions={},
        samples=list(_samples(engine, shape, layout, variant)),
    )


def _samples(engine: Engine, shape: Shape, layout: Layout, variant: str) -> Iterator[Sample]:
    depths = (layout.pp, 2 * layout.pp) if engine.stages == "even" else (shape.layers,)
    base, others = (2, (4,)) if layout.dp > 2 else (layout.dp, ())
    for stage in dict.fromkeys((0, layout.pp - 1)):
        for layers in depths:
            for dp, rows in [*((base, rows) for rows in ROWS), *((other, ROWS[0]) for other in others)]:
                at, small = replace(layout, dp=dp), replace(shape, layers=layers)
                yield Sample(
                    layers=layers,
                    rows=rows,
                    ranks=at.ranks,
                    rank=stage,
                    axes={"dp_replicate": layout.dp, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp},
                    windows=_count_stage(engine, small, at, stage, rows, variant),
                )


def _count_stage(
    engine: Engine, shape: Shape, layout: Layout, stage: int, rows: int, variant: str
) -> dict[str, dict[str, int]]:
    """Return window -> cause -> bytes of one rank of the stage."""
    last = stage == layout.pp - 1
    layers = layers_of(shape, layout.pp, engine.stages)[stage]
    ends = (stage == 0) + last - (shape.tied and layout.pp == 1)  # embedding, head
    sizes = {
        "parameters": layers * shape.layer_weights + ends * shape.head_weights,
        "layer_weights": shape.layer_weights,
        "tokens": rows * layout.tokens_per_row,
        "tokens_per_row": layout.tokens_per_row,
        "hidden": shape.hidden,
        "kv": shape.kv,
        "heads": shape.heads,
        "intermediate": shape.intermediate,
        "vocabulary": shape.vocabulary,
    }
    parts = {"tp": layout.tp, "sharers": layout.sharers}
    conditions: dict[str, str | int] = {
        **{name: getattr(layout, name) for name in ("dp", "tp", "pp", "cp", "zero_stage")},
        "stage": "last" if last else "",
        "variant": variant,
    }
    found: dict[str, dict[str, int]] = {}
    flying_in = {window: layout.in_flight(stage) - (window == "backward, end") for window in WINDOWS}
    if any(UPDATE in one.windows for one in engine.held):
        flying_in[UPDATE] = 0
    for window, flying in flying_in.items():
        causes = found.setdefault(window, {})
        for one in engine.held:
            if _is_there(one, conditions) and (not one.windows or window in one.windows):
                times = layers * flying if one.each_layer else 1
                whole = one.bytes * math.prod(sizes[name] for name in one.of) * times
                size = whole // math.prod(parts[name] for name in one.split)
                causes[one.cause] = causes.get(one.cause, 0) + size
    return found


def _is_there(one: Held, conditions: dict[str, str | int]) -> bool:
    for name, wanted in one.only.items():
        value = conditions[name]
        if not (isinstance(value, int) and value > 1 if wanted == "several" else value == wanted):
            return False
    return True
