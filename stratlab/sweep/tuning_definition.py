"""The key `tune` of a sweep's file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

Value = (
    Annotated[bool, Strict()]
    | Annotated[int, Strict()]
    | Annotated[float, Strict()]
    | Annotated[str, Strict()]
)


class Tune(BaseModel):
    """How each strategy is tuned. All else is as in the comparison: seed, data, batch, precision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    knobs: dict[str, dict[str, Annotated[list[Value], Field(min_length=1)]]] = Field(
        min_length=1,
        description="charts with knobs and lists of values, such as {ddp: {static_graph: [true]}}",
    )
    """Name of a chart in the matrix -> knob (docs/knobs.md) -> values to try beside the one that it has."""
    steps: int = Field(ge=10, le=1_000_000, strict=True)
    """Of each run of a candidate; the first 5 are never timed."""
    candidates: int = Field(default=4, ge=2, le=100, strict=True)
    """Tried at most for each combination of the matrix; the first one is the strategy as it comes."""
    repeats: int = Field(default=1, ge=1, le=100, strict=True)
    """Runs of each candidate. With two and more there is a noise that a lead must exceed."""
    metric: Literal["throughput", "step_time", "memory"] = "throughput"
    """What makes a candidate better: samples per second, the median step, or the peak of device memory."""
