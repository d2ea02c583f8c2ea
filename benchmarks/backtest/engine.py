"""The description of a foreign engine: what a rank holds, item by item."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ENGINES = Path(__file__).with_name("engines")
WINDOWS = ("forward", "backward, begin", "backward, end")
"""As the trainer names them: all is saved and the loss is made; the loss and the head go back; the embedding does."""


@dataclass(frozen=True)
class Held:
    """One item of the memory of a rank.

    Attributes:
        of: dimensions whose product, times `bytes`, is the whole item.
        split: what divides it: "tp", and "sharers", the ranks that share out the optimizer.
        each_layer: once for every layer of the stage and micro-batch in flight; else once.
        only: dimension -> the value with which it is there; "several" is more than one.
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
    """`stages`: how layers become stages, "even" or "by cost". `variants`: versions that hold different things."""

    name: str
    stages: str
    variants: Sequence[str]
    held: Sequence[Held]


def read_engine(name: str) -> Engine:
    """The description engines/<name>.toml."""
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
