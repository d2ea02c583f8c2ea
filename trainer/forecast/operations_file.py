"""Operations files of a pod, on its volume or in its image, and which of them answers for its settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.forecast.operations_content import OperationsContent, describe_problem
from trainer.forecast.scaling import Peak, Sample, find_peak, find_window
from trainer.settings.config import Config
from trainer.shapes.pipeline_stages import VIRTUAL_STAGES

SCHEMA = 1
CUDA, CPU = "cuda", "cpu"
"""By whose rules of autocast and attention a file was counted."""
HOST = "host"
"""What is offloaded, as if it were a window of the step."""
FOLDER = "_operations"
"""Below the results; no comparison can have this name."""
IN_IMAGE = Path(__file__).with_name("operations")
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
    folders = (*more, Path(config.results) / FOLDER, IN_IMAGE)
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
