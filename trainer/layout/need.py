"""What a layout needs of its fullest device: foreseen from an operations file, else at least the model's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.forecast.memory import GIB, Forecast, forecast_memory
from trainer.layout.axes import ND_AXES
from trainer.layout.decoder_memory import RankMemory, describe_ranks
from trainer.layout.resolve import Layout
from trainer.settings.config import Config

if TYPE_CHECKING:
    from trainer.shapes.decoder_shapes import DecoderShape

STATE = "state alone"
"""Source of a need that no operations file tells."""


@dataclass(frozen=True)
class Need:
    """Of one layout."""

    layout: Layout
    gib: float
    """As `stratlab predict` has it; without a file weights, gradients and optimizer state, which is a lower bound."""
    causes_gib: dict[str, float]
    source: str
    """An operations file's name, or STATE."""
    at_most: bool = False
    """No more than that: what exceeds a device by it may fit all the same."""
    forecast: Forecast | None = field(default=None, repr=False)

    def exceeds(self, device_gib: float) -> bool:
        """Whether it is known not to fit."""
        return self.gib > device_gib and not self.at_most

    @property
    def largest(self) -> str:
        """`activations 60.20`: the cause that takes most."""
        name = max(self.causes_gib, key=lambda cause: self.causes_gib[cause])
        return f"{name} {self.causes_gib[name]:.2f}"

    def describe(self) -> str:
        """`pp2.dp4 needs 92.10 GiB (most of it activations 60.20; nd-2d.json)`."""
        least = "at least " if self.source == STATE else "<= " if self.at_most else ""
        return (
            f"{self.layout.name} needs {least}{self.gib:.2f} GiB (most of it {self.largest}; {self.source})"
        )


def measure_need(
    config: Config, world_size: int, shape: DecoderShape, layout: Layout, folders: Sequence[Path] = ()
) -> Need:
    """Of `layout`, whichever `config` asks for.

    Args:
        folders: of further operations files, which go first.
    """
    for asked in _ask(config, layout):
        if forecast := forecast_memory(asked, world_size, world_size, folders=folders):
            causes = {name: size / GIB for name, size in forecast.peak.causes.items()}
            rest = forecast.on_device_gib - forecast.peak_gib
            return Need(
                layout,
                forecast.on_device_gib,
                {**causes, "context, libraries, fragmentation": rest},
                forecast.file.path.name,
                forecast.at_most,
                forecast,
            )
    fullest = max(describe_ranks(config, shape, layout), key=lambda rank: rank.total_bytes)
    return Need(layout, fullest.total_bytes / GIB, _list_state(fullest), STATE)


def as_laid_out(config: Config, layout: Layout | None) -> Config:
    """The settings of which an operations file answers for a run with this layout, None = of another strategy than nd.

    They stay what they are where they lead to it by themselves.
    """
    return config if layout is None or layout.is_first else _as_given(config, layout)


def _as_given(config: Config, layout: Layout) -> Config:
    """The settings with the degrees of `layout` typed, as an operations file of it was asked for."""
    degrees = {axis: getattr(layout.axes, axis) for axis in (*ND_AXES, "ep")}
    split = {} if config.sequence_parallel != "auto" else {"sequence_parallel": _name_split(layout)}
    typed = {axis: 0 if size == 1 else size for axis, size in degrees.items()}
    return config.model_copy(update={"layout": "given", "dimensions": 1, **typed, **split})


def _name_split(layout: Layout) -> str:
    return "on" if layout.sequence_parallel else "auto"


def _ask(config: Config, layout: Layout) -> list[Config]:
    """Settings under which a file may have counted this layout: these, if they lead to it, or its degrees as typed."""
    given = _as_given(config, layout)
    filled = given.model_copy(update={"dp_shard": 0})
    return [*([config] if layout.is_first else []), given, filled]


def _list_state(rank: RankMemory) -> dict[str, float]:
    sizes = {
        "weights": rank.parameter_bytes,
        "gradients": rank.gradient_bytes,
        "optimizer state": rank.optimizer_bytes,
        "teacher": rank.teacher_bytes,
    }
    return {name: size / GIB for name, size in sizes.items() if size}
