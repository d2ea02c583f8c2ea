"""Operations files: a strategy's counts by `python -m trainer.count --operations`, and the choice of the file that
answers.

    question (a run's settings, ranks, rows) ─▶ find_operations ─▶ file ─▶ peak: bytes by cause, in the fullest window

Pods ask with their settings, `stratlab predict` with charts or options: the same files, the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from stratlab_spec.memory.extrapolation import CountedPart, Number, Peak, Sample, extrapolate
from stratlab_spec.models.decoder import VIRTUAL_STAGES
from stratlab_spec.models.model_specs import IMAGE_SIZES
from stratlab_spec.registry import SIZES
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.old_names import take_new_names
from stratlab_spec.settings.wording import as_text

GIB = 2**30
SCHEMA = 1
CUDA, CPU = "cuda", "cpu"
"""By whose rules of autocast and attention a file was counted."""
FOLDER = "_operations"
"""Below the results; no comparison can have this name."""
NEEDED = {"model": str, "strategy": str, "activation_checkpointing": str, "lora_rank": int}
"""Settings that answers and advice look at."""
IRRELEVANT = (
    *("run", "comparison", "results", "image", "accelerator", "wait_s", "grace_s", "allow_faults", "fault"),
    *("seed", "init", "mode", "tokenizer", "image_column", "label_column", "dataset", "dataset_path"),
    *("allow_altered_answers", "normalization", "data_residence", "validation_fraction", "train_samples"),
    *("lora_alpha", "distill_temperature", "distill_alpha", "epochs", "steps", "lr", "lr_schedule", "eps"),
    *("warmup_steps", "nesterov", "beta1", "beta2", "profile_first_step", "profile_warmup"),
    *(
        "profile_steps",
        "profile_shapes",
        "profile_memory",
        "memory_snapshot",
        "flops_profiler",
        "tensorboard",
    ),
    *(
        "flight_recorder",
        "checkpoint_every",
        "checkpoint_minutes",
        "checkpoint_keep",
        "resume",
        "resume_from",
    ),
    *("checkpoint_keep_finished", "evaluate_every", "log_every", "target_accuracy_pct", "target_perplexity"),
    *(
        "on_not_finite",
        "collective_timeout_s",
        "oom_fallback",
        "memory_forecast",
        "max_attempts",
        "deadline_s",
    ),
    "least_gb_per_s",
)
"""Settings on which no tensor of a step depends. A data set gives classes and channels, which a file names."""

Setting = bool | Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | float | str


@dataclass(frozen=True)
class Question:
    """A question about the memory of one run.

    Attributes:
        name: of the run, as the user knows it.
        settings: setting -> text, as its pods have them.
        per_node: ranks that share a node; 0 = unknown.
        rows: of a micro-batch.
        global_batch: rows of a step; 0 = unknown, several micro-batches.
        layers: 0 = the model's own.
        whole: settings missing in `settings` have their defaults; otherwise the file's values.
        typed: of a question that is not whole: the settings that the user has given.
        origin: where the sizes of the model are from, for readers; "" = from a preset that was named.
    """

    name: str
    settings: Mapping[str, str]
    ranks: int
    per_node: int
    rows: int
    global_batch: int
    layers: int = 0
    whole: bool = True
    typed: frozenset[str] = frozenset()
    origin: str = ""

    def accumulates(self, share: int) -> bool:
        """Return whether a step has several micro-batches. `share`: ranks that see different rows."""
        return not self.global_batch or count_micro_batches(self.global_batch, self.rows, share) != 1

    def find_refusal(self, share: int) -> str:
        """Return why no run can start with this batch; "" = it can."""
        step = self.rows * share
        if self.global_batch % step == 0:
            return ""
        return (
            f"global_batch_size={self.global_batch}: must be a multiple of micro_batch_size={self.rows} x {share} = "
            f"{step}, for example {max(1, self.global_batch // step) * step}"
        )

    def list_smaller(self, share: int, most: int | None = None) -> Iterator[int]:
        """Yield micro-batches below the run's, up to `most`, of which the same step can be made, the largest first.

        Of an unknown step any can.
        """
        step = self.global_batch // share
        largest = self.rows - 1 if most is None else min(most, self.rows - 1)
        return (rows for rows in range(largest, 0, -1) if step % rows == 0)


def ask_of_run(config: Config, ranks: int, per_node: int) -> Question:
    """Return the question of a run with these settings."""
    settings = {name: as_text(value) for name, value in config.model_dump().items()}
    rows, batch = config.micro_batch_size, config.global_batch_size
    return Question(config.run, settings, ranks, per_node, rows, batch, config.model_layers)


class OperationsFile(CountedPart):
    """The counts of one strategy of one model, read from a file (trainer/memory_estimation/memory_profile.py).

    Attributes:
        settings: setting -> value: all on which memory depends, except depth and batch.
        defaults: the same settings' defaults.
        layers: the model's own; 0 = not known.
        accumulates: a step has several micro-batches; with a single one the memory is not larger.
        labels, channels: of the images that were counted; 0 = text.
        per_node: ranks that share a node, if the axes depend on it; 0 = it makes no difference.
        known: all settings at the time of the count; a newer setting may matter if it differs from its default.
    """

    path: Path = Path()
    schema_version: int = SCHEMA
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
    samples: Annotated[list[Sample], Field(min_length=1)]
    per_node: Number = 0
    known: list[str] = Field(default=[])
    rules: str = CUDA

    @field_validator("settings", "defaults", mode="before")
    @classmethod
    def _take_new_names(cls, settings: Any) -> Any:
        return take_new_names(settings) if isinstance(settings, Mapping) else settings

    @field_validator("known")
    @classmethod
    def _take_new_name(cls, known: list[str]) -> list[str]:
        return [*take_new_names(dict.fromkeys(known))]

    @field_validator("settings")
    @classmethod
    def _has_needed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for name, kind in NEEDED.items():
            if not isinstance(settings.get(name), kind):
                raise ValueError(f"{name}={settings.get(name)!r} is no setting")
        return settings

    @field_validator("samples")
    @classmethod
    def _is_grid(cls, samples: list[Sample]) -> list[Sample]:
        """Check that another number of ranks has a micro-batch in common, by which they are compared."""
        for rank in {sample.rank for sample in samples}:
            mine = [sample for sample in samples if sample.rank == rank]
            rows = {sample.rows for sample in mine if sample.ranks == mine[0].ranks}
            if alone := {sample.rows for sample in mine} - rows:
                raise ValueError(f"{min(alone)} rows were not counted on {mine[0].ranks} ranks")
        return samples

    @property
    def strategy(self) -> str:
        return str(self.settings["strategy"])

    @property
    def model(self) -> str:
        return str(self.settings["model"])

    @property
    def axes(self) -> Mapping[str, int]:
        return self.samples[0].axes

    @property
    def stages(self) -> int:
        """Return the pipeline stages that one rank holds."""
        return VIRTUAL_STAGES.get(str(self.settings.get("pp_schedule")), 1)

    def share(self, ranks: int) -> int:
        """Return the number of ranks that see different rows; the axes that share rows are as in the count."""
        return max(1, ranks // math.prod(self.axes.get(name, 1) for name in ("tp", "cp", "pp")))

    def accumulates_for(self, question: Question) -> bool:
        """Return whether a step of the run has several micro-batches."""
        return question.accumulates(self.share(question.ranks))

    def is_upper_bound(self, question: Question) -> bool:
        """Return whether the file was counted with several micro-batches in a step and the run has one.

        With several, gradients of an earlier micro-batch are part of the memory.
        """
        return self.accumulates and not self.accumulates_for(question)

    def has(self, name: str, text: str) -> bool:
        """Return whether it was counted with this value; True if it answers for several."""
        if name == "weight_decay" and name in self.settings:
            return self._has_decay(text)
        meant = "bf16" if (name, text) == ("precision", "auto") else text
        return name not in self.settings or _is_same(self.model, name, self.settings[name], meant)

    def _has_decay(self, text: str) -> bool:
        """Return whether the same tensors exist: torch's SGD adds any decay to a copy of all gradients."""
        copies = self.settings.get("optimizer") == "sgd"
        return not copies or bool(self.settings["weight_decay"]) is (float(text) > 0)

    def misses(self, question: Question) -> Iterator[str]:
        """Yield the reasons why this file cannot answer; empty if it can."""
        wanted, ranks = question.settings, question.ranks
        # a question without settings takes the file's own, except the depth: there the model's is used
        meant = {
            name: as_text(value)
            for name, value in self.defaults.items()
            if question.whole or name == "model_layers"
        }
        meant |= {name: text for name, text in wanted.items() if name in self.settings}
        say = partial(describe_setting, self.model)
        for name, text in meant.items():
            if not self.has(name, text):
                yield f"{name}={say(name, self.settings[name])} (wanted {say(name, text)})"
        for name, text in wanted.items():
            if self.known and name not in self.known and not _is_default(name, text):
                yield f"no setting {name} when it was counted (wanted {text})"
        depth = wanted.get("model_layers", "0")
        scales = self.scales_depth or "model_layers" in self.settings
        if not scales and depth not in ("0", str(self.layers)):
            yield f"model_layers={self.layers} (wanted {depth})"
        counted = {sample.ranks for sample in self.samples}
        if ranks not in counted and not (self.scales_ranks and ranks > 1):
            yield f"ranks={', '.join(map(str, sorted(counted)))} (wanted {ranks})"
        if self.per_node and question.per_node not in (0, self.per_node):
            yield f"{self.per_node} ranks on a node (wanted {question.per_node})"
        if self.accumulates_for(question) and not self.accumulates:
            yield "one micro-batch in a step (wanted several)"

    def peak(self, rows: int, ranks: int, layers: int = 0) -> Peak:
        """Return the peak of the fullest rank, with micro-batches of `rows`. `layers`: 0 = the model's own."""
        windows = dict.fromkeys((sample.rank, name) for sample in self.samples for name in sample.windows)
        moments = (self.window(name, rank, rows, ranks, layers) for rank, name in windows)
        return max(moments, key=lambda peak: peak.total)

    def window(self, name: str, rank: int, rows: int, ranks: int, layers: int = 0) -> Peak:
        """Return a counted rank's memory in the fullest moment of one window; empty if the window was not counted.

        Args:
            name: HOST = its host memory.
        """
        mine = self._own_samples[rank]
        own = mine[0][0].own_layers(layers or self.layers, self.stages)
        return extrapolate(mine, name, own, rows, ranks)

    @cached_property
    def _own_samples(self) -> dict[int, list[tuple[Sample, int]]]:
        """Rank -> its counts, each with the layers that it holds there."""
        found: dict[int, list[tuple[Sample, int]]] = {}
        for sample in self.samples:
            depth = sample.own_layers(sample.layers, self.stages)
            found.setdefault(sample.rank, []).append((sample, depth))
        return found


def _is_same(model: str, name: str, value: Any, text: str) -> bool:
    """Return whether `value` of a file equals the requested text."""
    if name == "image_size" and text.isdecimal():
        return (value or IMAGE_SIZES.get(model, 0)) == (int(text) or IMAGE_SIZES.get(model, 0))
    if isinstance(value, bool | str):
        return as_text(value) == (text.lower() if isinstance(value, bool) else text)
    try:
        return float(text) == float(value)
    except ValueError:
        return False


def _is_default(name: str, text: str) -> bool:
    field = Config.model_fields.get(name)
    return field is not None and text == as_text(field.default)


def describe_setting(model: str, name: str, value: Any) -> str:
    """Return the value as readers see it, with the meaning of 0.

    >>> describe_setting("vit_huge", "image_size", 0), describe_setting("x", "packing", True)
    ("224 (the model's own)", 'true')
    """
    text = as_text(value)
    if text == "0" and name in (*SIZES, "image_size"):
        size = IMAGE_SIZES.get(model) if name == "image_size" else None
        return f"{size} (the model's own)" if size else "the model's own"
    return text or "none"


class BadOperationsFile(ValueError):
    """An unreadable or invalid operations file. `path`: its place; `why`: without the place."""

    def __init__(self, path: Path, why: str, sentence: str) -> None:
        super().__init__(f"{path}: {sentence}")
        self.path, self.why = path, why


def read_operations_file(path: Path) -> OperationsFile:
    """Return the file at `path`.

    Raises:
        BadOperationsFile: it cannot be read, or is invalid.
    """
    try:
        file = OperationsFile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as failure:
        if isinstance(
            failure, ValidationError
        ):  # the first one, as samples.0.rows: Input should be greater ...
            first = failure.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        else:
            why = failure.strerror or str(failure)
        raise BadOperationsFile(
            path,
            why,
            f"no operations file ({why}); `python -m trainer.count --operations FILE` writes one [SL-operations-file]",
        ) from None
    if file.schema_version != SCHEMA:
        why = f"schema {file.schema_version}, expected {SCHEMA}"
        raise BadOperationsFile(
            path, why, f"an operations file of {why}; count it again [SL-operations-schema]"
        )
    return file.model_copy(update={"path": path})


def read_operations(
    folders: Sequence[Path], leave_out: Callable[[BadOperationsFile], None] | None = None
) -> Iterator[OperationsFile]:
    """Yield every file of the folders, in the order of their names; missing folders are skipped.

    Args:
        leave_out: called with each invalid file, which is skipped.

    Raises:
        BadOperationsFile: a file is invalid, and there is no `leave_out`.
    """
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        try:
            yield read_operations_file(path)
        except BadOperationsFile as failure:
            if leave_out is None:
                raise
            leave_out(failure)


def find_operations(
    files: Sequence[OperationsFile], question: Question, rules: str = CUDA
) -> OperationsFile | None:
    """Return the file that answers, preferring the same rules and as many micro-batches; None without one.

    A CPU uses a file of CUDA's rules if there is no other: its forecast is recorded there too.
    """
    able = [file for file in files if file.rules in (CUDA, rules) and not any(file.misses(question))]
    return min(
        able,
        key=lambda file: (file.rules != rules, file.accumulates is not file.accumulates_for(question)),
        default=None,
    )
