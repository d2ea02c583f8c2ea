"""What stands in an operations file, read and checked; another program may have written it, or half of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

Number = Annotated[int, Field(ge=0, le=1 << 53)]
Positive = Annotated[int, Field(ge=1, le=1 << 30)]
Setting = bool | Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | float | str
NEEDED = {"model": str, "strategy": str, "activation_checkpointing": str, "lora_rank": int}
"""Settings that answers and advice look at."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Count(_Part):
    """One of them: bytes by window and cause, and those in host memory by cause."""

    layers: Number
    rows: Positive
    ranks: Positive
    rank: Number
    axes: dict[str, Positive]
    windows: Annotated[dict[str, dict[str, Number]], Field(min_length=1)]
    host: dict[str, Number] = {}


class OperationsContent(_Part):
    """Of trainer/memory_estimation/memory_profile.py, as far as answers depend on it."""

    schema_version: int
    key: str
    settings: dict[str, Setting]
    defaults: dict[str, Setting]
    layers: Number
    scales_depth: bool
    scales_ranks: bool
    accumulates: bool
    labels: Number
    channels: Number
    versions: dict[str, str]
    samples: Annotated[list[Count], Field(min_length=1)]
    per_node: Number = 0
    known: list[str] = []

    @field_validator("settings")
    @classmethod
    def _names(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for name, kind in NEEDED.items():
            if not isinstance(settings.get(name), kind):
                raise ValueError(f"{name}={settings.get(name)!r} is no setting")
        return settings

    @field_validator("samples")
    @classmethod
    def _grid(cls, samples: list[Count]) -> list[Count]:
        """Another number of ranks is compared at a micro-batch that both have."""
        for rank in {count.rank for count in samples}:
            mine = [count for count in samples if count.rank == rank]
            rows = {count.rows for count in mine if count.ranks == mine[0].ranks}
            if alone := {count.rows for count in mine} - rows:
                raise ValueError(f"{min(alone)} rows were not counted on {mine[0].ranks} ranks")
        return samples


def describe_problem(failure: ValidationError) -> str:
    """The first one: `samples.0.rows: Input should be greater than or equal to 1`."""
    first = failure.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
