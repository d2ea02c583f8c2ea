"""A description, a shape and a layout become an operations file: a few small counts, from which `predict` scales.

As the trainer does it for its own engines: micro-batches of one and two rows; two small depths where stages are even,
else the model's own; two and four ranks of data parallelism, where there are more; the first and the last stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.backtest.decoder import Layout, Shape, layers_of
from benchmarks.backtest.engine import WINDOWS, Engine, Held
from stratlab_spec.memory.profiles import OperationsFile, Sample

ROWS = (1, 2)


def build_operations(engine: Engine, shape: Shape, layout: Layout, variant: str = "") -> OperationsFile:
    """The file of one model under one layout, for every micro-batch, depth and number of ranks."""
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
    """Window -> cause -> bytes of one rank of the stage."""
    last = stage == layout.pp - 1
    layers = layers_of(shape, layout.pp, engine.stages)[stage]
    ends = (stage == 0) + last - (shape.tied and layout.pp == 1)  # embedding, head
    sizes = {
        "parameters": layers * shape.layer_weights + ends * shape.head_weights,
        "layer_weights": shape.layer_weights,
        "tokens": rows * layout.tokens_per_row,
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
    for window in WINDOWS:
        causes = found.setdefault(window, {})
        flying = layout.in_flight(stage) - (window == "backward, end")
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
