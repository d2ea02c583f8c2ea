"""Answer a question about memory from recorded steps; the same interface as a counted operations file.

question ─▶ simulate_run: settings, layout ─▶ Simulated ─▶ peak of any micro-batch, in a few milliseconds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.mesh_rules import resolve_axes, shape_problems
from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.memory.extrapolation import HOST, Peak, settle
from stratlab_spec.memory.profiles import Question
from stratlab_spec.memory.simulation import StepMemory
from stratlab_spec.memory.step_prediction import FLAVORS, NotRecorded, predict_step
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import PREFIX, Config, ConfigError
from stratlab_spec.settings.wording import as_text
from stratlab_spec.strategies import STRATEGIES

SOURCE = "recorded steps"
COMPILED_TIMES = 1.02
"""Memory of a compiled run, at most, in units of the same eager run's. Where ranks hold whole weights, their copies
in 16 bits come on top. All 14 compiled runs in benchmarks/gpu/measured (one rank; ViT-B, ViT-H, Qwen2.5-3B) stay below;
they took 0.95 to 1.08 of the eager prediction. Of strategy nd none was measured, so it has no bound."""
COPIES = "compiled copies"


@dataclass(frozen=True)
class Simulated:
    """The memory of one run's fullest rank, simulated from a recording of its family.

    Attributes:
        micro_batches: of a step.
        knows_batch: a step has so many rows for any micro-batch; otherwise so many micro-batches.
    """

    config: Config
    ranks: int
    ranks_of_node: int
    axes_of_run: Axes
    micro_batches: int
    knows_batch: bool = True
    path: Path = Path(SOURCE)
    key: str = ""
    labels: int = 0
    channels: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    _steps: dict[tuple[int, int], StepMemory] = field(default_factory=dict, compare=False, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        return self.config.model_dump()

    @property
    def strategy(self) -> str:
        return str(self.config.strategy)

    @property
    def model(self) -> str:
        return self.config.model_path or str(self.config.model)

    @property
    def axes(self) -> Mapping[str, int]:
        return self.axes_of_run.as_dict()

    @property
    def per_node(self) -> int:
        """Return the ranks of a node if the axes depend on it, else 0."""
        return self.ranks_of_node if STRATEGIES[self.strategy].by_nodes else 0

    def share(self, _: int) -> int:
        """Return the number of ranks that see different rows."""
        return self.axes_of_run.dp

    def accumulates_for(self, question: Question) -> bool:
        """Return whether a step has several micro-batches."""
        return question.accumulates(self.share(question.ranks))

    def is_upper_bound(self, _: Question) -> bool:
        """Return whether the run is compiled: the recorded steps are eager. Accumulation is simulated as it is."""
        return bool(self.config.compile)

    def peak(self, rows: int, _: int, layers: int = 0) -> Peak:
        """Return the peak with micro-batches of `rows`."""
        step = self._step(rows, layers)
        name = max(step.windows, key=lambda window: step.windows[window][0])
        return self._take(step, name)

    def window(self, name: str, _: int, rows: int, __: int, layers: int = 0) -> Peak:
        """Return the memory in the fullest moment of one window; HOST = in host memory."""
        step = self._step(rows, layers)
        if name == HOST:
            return Peak(HOST, step.rank, {cause: size for cause, size in step.host.items() if size})
        return self._take(step, name)

    def _take(self, step: StepMemory, name: str) -> Peak:
        causes = settle(step.windows[name][1] if name in step.windows else {})
        if self.config.compile and causes:
            copies = causes.get("parameters", 0) / 2 * (self.strategy in FLAVORS["whole"].strategies)
            causes[COPIES] = round((COMPILED_TIMES - 1) * sum(causes.values()) + copies)
        return Peak(name, step.rank, causes)

    def _step(self, rows: int, layers: int) -> StepMemory:
        if (rows, layers) not in self._steps:
            step_rows = self.config.micro_batch_size * self.micro_batches
            count = -(-step_rows // rows)
            least = 2 * self.axes_of_run.pp  # it accumulates as the run does
            count = max(count, min(least, self.micro_batches)) if self.knows_batch else self.micro_batches
            batch = count * rows * self.axes_of_run.dp
            compiled = self.config.compile and self.strategy == "nd"
            changed = {"micro_batch_size": rows, "global_batch_size": batch, "compile": compiled}
            config = self.config.model_copy(
                update={**changed, **({"model_layers": layers} if layers else {})}
            )
            self._steps[rows, layers] = predict_step(config, self.ranks, self.ranks_of_node)
        return self._steps[rows, layers]


class CannotStart(ValueError):
    """No run can start with these settings; the text says why."""


def simulate_run(question: Question) -> Simulated:
    """Return the answer to a question whose settings are complete.

    Raises:
        NotRecorded, CannotStart: as `resolve_run`; a setting that no recording has.
    """
    found = resolve_run(question)
    try:
        found.peak(found.config.micro_batch_size, question.ranks)
    except DataMissing as failure:  # a name on the hub, without a network
        raise NotRecorded(str(failure)) from None
    return found


def resolve_run(question: Question) -> Simulated:
    """Return the run of a question, before its memory is simulated.

    Raises:
        NotRecorded: a model whose shape is not on this machine.
        CannotStart: the run cannot start.
    """
    fields = Config.model_fields
    env = {
        f"{PREFIX}{name.upper()}": text
        for name, text in question.settings.items()
        # a run's own question names all settings; one of another strategy counts as set
        if name not in fields or text != as_text(fields[name].default)
    }
    per_node = question.per_node or question.ranks
    try:
        config = Config.from_env({f"{PREFIX}RUN": "asked", **env})
        if config.model_path and not Path(config.model_path).is_dir():
            raise NotRecorded(f"model_path={config.model_path}: not on this machine")
        if not question.global_batch:  # unknown: two micro-batches, or two for each stage of a pipeline
            rows = config.micro_batch_size
            config = config.model_copy(update={"global_batch_size": 2 * rows * question.ranks})
            axes = _resolve(config, question.ranks, per_node)
            config = config.model_copy(update={"global_batch_size": 2 * axes.pp * rows * axes.dp})
        if problems := shape_problems(config, question.ranks, per_node):
            raise CannotStart("; ".join(problems))
        axes = _resolve(config, question.ranks, per_node)
    except ConfigError as failure:
        raise CannotStart("; ".join(failure.problems)) from None
    except DataMissing as failure:
        raise NotRecorded(str(failure)) from None
    micro_batches = count_micro_batches(config.global_batch_size, config.micro_batch_size, axes.dp)
    return Simulated(config, question.ranks, per_node, axes, micro_batches, bool(question.global_batch))


def _resolve(config: Config, ranks: int, per_node: int) -> Axes:
    if config.strategy == "nd":
        return resolve_layout(config, ranks, read_shape(config)).axes
    return resolve_axes(config, ranks, per_node)
