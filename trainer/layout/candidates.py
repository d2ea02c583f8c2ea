"""The layouts among which `auto` chooses: those that keep the promises of a number of dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from trainer.layout.axes import Axes
from trainer.layout.layout_rules import broken_layout_rules
from trainer.layout.resolve import (
    FIRST_DIMENSIONS,
    OWN_SEQUENCE_AXIS_FROM,
    Layout,
    build_layout,
    find_ep,
    resolve_layout,
)
from trainer.settings.config import Config

if TYPE_CHECKING:
    from trainer.shapes.decoder_shapes import DecoderShape


def list_candidates(config: Config, world_size: int, shape: DecoderShape) -> list[Layout]:
    """First the layout that stands for the dimensions, then the others, those that leave most to the data axis first.

    What is given, or has one dimension, is alone: with one nothing is sharded, which is the point of it.

    Raises:
        ConfigError: the first one breaks a rule.
    """
    first = resolve_layout(config, world_size, shape)
    if config.layout != "auto" or config.dimensions == 1:
        return [first]
    others = [
        layout
        for axes in _list_axes(config, world_size, shape)
        if axes != first.axes
        and not {*(layout := build_layout(config, axes, shape, _tell(config, axes))).missing}
        - {*first.missing}
        and not broken_layout_rules(config, world_size, shape, axes, layout.sequence_parallel)
    ]
    return [first, *sorted(others, key=lambda layout: _take(layout.axes))]


def _list_axes(config: Config, world_size: int, shape: DecoderShape) -> Iterator[Axes]:
    allowed = {
        axis: _divisors(world_size) if config.dimensions >= first else [1]
        for axis, first in FIRST_DIMENSIONS.items()
    }
    if world_size < OWN_SEQUENCE_AXIS_FROM:
        allowed["cp"] = [1]
    for sizes in product(*allowed.values()):
        taken = dict(zip(allowed, sizes, strict=True))
        claimed = taken["pp"] * taken["tp"] * taken["cp"]
        if world_size % claimed == 0:
            yield find_ep(config, shape, Axes(dp_shard=world_size // claimed, **taken))


def _take(axes: Axes) -> tuple[int, ...]:
    """Processes that the data axis does not have; of as many rather a pipeline, which sends least."""
    return axes.pp * axes.tp * axes.cp, axes.tp, axes.cp


def _tell(config: Config, axes: Axes) -> str:
    degrees = (f"{axis} {getattr(axes, axis)}" for axis in ("pp", "tp", "cp", "dp_shard", "ep"))
    told = ", ".join(degree for degree in degrees if not degree.endswith(" 1"))
    return f"{config.dimensions}D on {axes.world_size} processes: {told}"


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
