"""What a run will hold, said before its ranks start, from counts that were made beforehand; without torch.

operations_file    files of `python -m trainer.count --operations`, and which of them answers for a run
scaling            their few counts become a run's depth, micro-batch and number of ranks
memory             the forecast: peak by cause, on a device, and whether it fits
deviation          the forecast beside what the run has measured

The rules are those of `stratlab predict`, which has its own copy of the last three lines of arithmetic, because neither
program needs the other (tests/trainer/forecast holds them equal).

What stands in an operations file, read and checked; another program may have written it, or half of it.

A file's few counts become any depth, micro-batch and number of ranks, window by window and cause by cause.

In one window of a step each cause holds a number of bytes that is even in the layers of the rank, and in the rows
between two counted micro-batches and behind the last; the part that ranks share is even in 1 / ranks. The peak is the
fullest window of the fullest rank.

Operations files of a pod, on its volume or in its image, and which of them answers for its settings.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stratlab_spec.models.decoder import VIRTUAL_STAGES, split_layers
from stratlab_spec.settings.config import Config

Number = Annotated[int, Field(ge=0, le=1 << 53)]
Positive = Annotated[int, Field(ge=1, le=1 << 30)]
Setting = bool | Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | float | str


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
    """Of trainer/memory_estimation/memory_profile.py, as far as a pod's answer depends on it."""

    schema_version: int
    key: str
    settings: Annotated[dict[str, Setting], Field(min_length=1)]
    layers: Number
    scales_depth: bool
    scales_ranks: bool
    accumulates: bool
    samples: Annotated[list[Count], Field(min_length=1)]
    per_node: Number = 0
    known: list[str] = []
    rules: str = "cuda"

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


Sample = Mapping[str, Any]
"""layers, rows, ranks, rank, axes, windows {window: {cause: bytes}}: as the file has it."""


@dataclass(frozen=True)
class Peak:
    """What is held in the fullest window. `causes`: bytes; only what is held."""

    window: str
    rank: int
    causes: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.causes.values())


def find_peak(samples: Sequence[Sample], layers: int, rows: int, ranks: int, stages: int = 1) -> Peak:
    """Of the fullest rank that was counted. `stages`: of a pipeline, that one rank holds."""
    return max(_peaks(samples, layers, rows, ranks, stages), key=lambda peak: peak.total)


def find_window(
    samples: Sequence[Sample], window: str, like: Peak, layers: int, rows: int, ranks: int, stages: int = 1
) -> Peak:
    """What the rank of `like` holds in the fullest moment of one window; of no bytes where that was not counted."""
    peaks = _peaks(samples, layers, rows, ranks, stages)
    mine = (peak for peak in peaks if (peak.window, peak.rank) == (window, like.rank))
    return next(mine, Peak(window, like.rank, {}))


def _peaks(samples: Sequence[Sample], layers: int, rows: int, ranks: int, stages: int) -> Iterator[Peak]:
    for rank in dict.fromkeys(sample["rank"] for sample in samples):
        mine = [
            {**sample, "layers": _own_layers(sample, sample["layers"], stages)}
            for sample in samples
            if sample["rank"] == rank
        ]
        own = _own_layers(mine[0], layers, stages)
        for window in dict.fromkeys(name for sample in mine for name in sample["windows"]):
            names = dict.fromkeys(name for sample in mine for name in sample["windows"].get(window, ()))
            sizes = {name: round(_scale(mine, window, name, own, rows, ranks)) for name in names}
            yield Peak(window, rank, _settle(sizes))


def _own_layers(sample: Sample, layers: int, stages: int) -> int:
    """Layers that the sample's rank holds of so many: of a pipeline the first or the last stages (split_layers)."""
    pp = sample["axes"].get("pp", 1)
    parts = split_layers(layers, pp * stages)
    return sum(map(len, parts[0 if sample["rank"] == 0 else pp - 1 :: pp]))


def _settle(sizes: Mapping[str, int]) -> dict[str, int]:
    """What is held, with the sum as it is: the fullest moment of a window is not the same one at every depth, so that a
    cause may end below nothing, and then the largest one above what it is."""
    owed = sum(size for size in sizes.values() if size < 0)
    held = {name: size for name, size in sizes.items() if size > 0}
    for name in sorted(held, key=lambda name: -held[name]):
        paid = max(-held[name], owed)
        held[name], owed = held[name] + paid, owed - paid
    return {name: size for name, size in held.items() if size}


def _scale(samples: Sequence[Sample], window: str, cause: str, layers: int, rows: int, ranks: int) -> float:
    def at(number: int) -> dict[int, float]:
        """Rows -> bytes, at this depth."""
        found: dict[int, list[tuple[float, float]]] = {}
        for sample in samples:
            if sample["ranks"] == number:
                size = sample["windows"].get(window, {}).get(cause, 0)
                found.setdefault(sample["rows"], []).append((sample["layers"], size))
        return {counted: _line(sorted(points), layers) for counted, points in sorted(found.items())}

    base = samples[0]["ranks"]
    here = at(base)
    value = _at_rows(here, rows)
    other = next((sample["ranks"] for sample in samples if sample["ranks"] != base), base)
    if base in (other, ranks):
        return value
    there = at(other)
    counted = next(iter(there))  # the micro-batch with which the other number of ranks was counted
    return value + (there[counted] - here[counted]) * (1 / ranks - 1 / base) / (1 / other - 1 / base)


def _at_rows(sizes: Mapping[int, float], rows: int) -> float:
    points = [(float(number), size) for number, size in sizes.items()]
    below = [point for point in points if point[0] <= rows] or points[:1]
    above = [point for point in points if point[0] > below[-1][0]]
    return _line([below[-1], above[0]] if above else points[-2:], rows)


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    """The straight line through the first and the last of them; one point is the same everywhere."""
    (x, y), (x_end, y_end) = points[0], points[-1]
    return y if x == x_end else y + (y_end - y) * (at - x) / (x_end - x)


SCHEMA = 1
CUDA, CPU = "cuda", "cpu"
"""By whose rules of autocast and attention a file was counted."""
HOST = "host"
"""What is offloaded, as if it were a window of the step."""
FOLDER = "_operations"
"""Below the results; no comparison can have this name."""
SHIPPED = Path(__file__).with_name("operations")
"""The shipped ones, in the trainer's image alone."""

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class OperationsFile:
    """One strategy of one model, counted (docs/predict.md). `accumulates`: a step has several micro-batches."""

    path: Path
    key: str
    settings: Mapping[str, Any]
    layers: int
    scales_depth: bool
    scales_ranks: bool
    accumulates: bool
    samples: Sequence[Sample]
    per_node: int = 0
    """Ranks that share a node, where the axes follow from that; 0 = it makes no difference."""
    known: Sequence[str] = ()
    """Every setting there was when it was counted. One that came later may matter once it is not at its default."""
    rules: str = CUDA

    def micro_batches(self, config: Config, ranks: int) -> int:
        """Of a step of this run: the axes that share a sample are those of the count."""
        axes = self.samples[0]["axes"]
        shared = math.prod(axes.get(name, 1) for name in ("tp", "cp", "pp"))
        return config.global_batch_size // (config.micro_batch_size * max(1, ranks // shared))

    def answers(self, config: Config, ranks: int, per_node: int) -> bool:
        """Whether it tells what a rank of this run will hold, or at least how much that is at most."""
        precision = "bf16" if config.precision == "auto" else config.precision
        meant = {**config.model_dump(include=set(self.settings)), "precision": precision}
        if any(meant.get(name) != value for name, value in self.settings.items()):
            return False
        fields = type(config).model_fields
        later = fields.keys() - self.known if self.known else set()
        if any(getattr(config, name) != fields[name].default for name in later):
            return False
        fixed_depth = "model_layers" not in self.settings and not self.scales_depth
        if fixed_depth and config.model_layers not in (0, self.layers):
            return False
        counted = {sample["ranks"] for sample in self.samples}
        if ranks not in counted and not (self.scales_ranks and ranks > 1):
            return False
        if self.per_node not in (0, per_node):
            return False
        return self.accumulates or self.micro_batches(config, ranks) == 1

    def peak(self, config: Config, ranks: int) -> Peak:
        layers, rows = config.model_layers or self.layers, config.micro_batch_size
        return find_peak(self.samples, layers, rows, ranks, self._stages(config))

    def window(self, name: str, peak: Peak, config: Config, ranks: int) -> Peak:
        """What the rank of `peak` holds in another window."""
        layers = config.model_layers or self.layers
        rows, stages = config.micro_batch_size, self._stages(config)
        return find_window(self.samples, name, peak, layers, rows, ranks, stages)

    def host(self, peak: Peak, config: Config, ranks: int) -> Peak:
        """What the rank of `peak` keeps in host memory; of no bytes without offload."""
        layers = config.model_layers or self.layers
        apart = [{**sample, "windows": {HOST: sample["host"]}} for sample in self.samples]
        return find_window(apart, HOST, peak, layers, config.micro_batch_size, ranks, self._stages(config))

    @staticmethod
    def _stages(config: Config) -> int:
        """Of a pipeline, that one rank holds."""
        return VIRTUAL_STAGES[config.pp_schedule]


def find_operations(
    config: Config, ranks: int, per_node: int, rules: str = CUDA, more: Sequence[Path] = ()
) -> OperationsFile | None:
    """The file that answers for this run; None = there is none. Those of `more` go first, then those of the volume.

    A CPU takes one of CUDA's rules where there is no other: what was foreseen is told there too.
    """
    folders = (*more, Path(config.results) / FOLDER, SHIPPED)
    able = [
        file
        for file in _read(folders)
        if file.rules in (CUDA, rules) and file.answers(config, ranks, per_node)
    ]
    return min(
        able,
        key=lambda file: (
            file.rules != rules,
            file.accumulates is not (file.micro_batches(config, ranks) > 1),
        ),
        default=None,
    )


def _read(folders: Sequence[Path]) -> Iterator[OperationsFile]:
    """A file that cannot be read is told and left out: it must not keep a run from starting."""
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        try:
            content = OperationsContent.model_validate_json(path.read_bytes()).model_dump()
            if (schema := content.pop("schema_version")) != SCHEMA:
                raise ValueError(f"schema {schema}, expected {SCHEMA}")
            yield OperationsFile(path, **content)
        except ValidationError as failure:
            log.warning("%s: no operations file, left out: %s", path, describe_problem(failure))
        except (OSError, ValueError) as failure:
            log.warning("%s: no operations file, left out: %s", path, failure)
