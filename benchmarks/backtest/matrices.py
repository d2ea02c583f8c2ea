"""Tables of foreign engines that name the runs that fit: a confusion matrix of each.

foreign.toml ─▶ read_tables ─▶ judge_table: the first description that matches a row answers for it ─▶ report.py

A description names our settings and ranks (`settings`, `model`, and `columns`: setting -> column of the table), then
recorded steps answer; or an engine of engines/, then its formulas do; or why nothing does. `held` has their bytes for
each byte of ours by cause, `more` what ours do not hold. A run fits if it fits on the device, even if nearly full.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.backtest.counts import Layout, Shape, build_operations, read_engine, read_table
from stratlab_spec.memory.prediction import Device, count_groups
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.memory.step_prediction import predict_step
from stratlab_spec.models.decoder import parameter_shapes
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.wording import as_text

DESCRIPTIONS = Path(__file__).with_name("foreign.toml")
RECORDED, FORMULAS = "recorded steps", "formulas"
ALWAYS = {"run": "foreign", "dataset": "metamathqa", "packing": False, "precision": "bf16"}
MICRO_BATCHES = 2
"""Of a step: all these engines accumulate gradients."""


@dataclass(frozen=True)
class More:
    """What theirs hold: `bytes` x the product of `of` (`list_sizes`), in `windows` of a step; empty = always."""

    what: str
    bytes: int
    of: Sequence[str]
    source: str
    windows: Sequence[str] = ()


@dataclass(frozen=True)
class Description:
    """Which of our settings stand for rows of a table. `when`: column -> pattern of the whole cell."""

    when: Mapping[str, str]
    why: str = ""
    """Nothing describes them."""
    differs: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    """Of [models]; empty = by the table's own columns."""
    ranks: int = 0
    held: Mapping[str, float] = field(default_factory=dict)
    more: Sequence[str] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)
    """Engine, variant, and how layers become stages."""

    def matches(self, row: Mapping[str, str]) -> bool:
        return all(re.fullmatch(pattern, row[name]) for name, pattern in self.when.items())


@dataclass(frozen=True)
class Table:
    """One published table. A row with a cell `full` ran out of memory, one with a cell `left_out` was not run."""

    file: str
    name: str
    engine: str
    device_gib: float
    full: str
    case: Sequence[str]
    rows: Sequence[Description]
    notes: Sequence[str]
    model: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""


@dataclass(frozen=True)
class Answer:
    """A row of a table. `needs_gib`: of the device; None = not described. `by`: what answers, or why nothing does."""

    case: str
    fits: bool
    """By the table."""
    needs_gib: float | None
    device_gib: float
    by: str

    @property
    def predicted(self) -> bool | None:
        """Return whether it is predicted to fit."""
        return None if self.needs_gib is None else self.needs_gib <= self.device_gib


@dataclass(frozen=True)
class Judged:
    """A table with its answers."""

    table: Table
    answers: Sequence[Answer]

    def count(self, fits: bool, predicted: bool | None) -> int:
        return sum((one.fits, one.predicted) == (fits, predicted) for one in self.answers)

    @property
    def matrix(self) -> dict[str, int]:
        """Return the numbers of rows by the table's and the predicted verdict; their sum is all rows."""
        return {
            "fits, predicted to fit": self.count(True, True),
            "fits, predicted not to fit": self.count(True, False),
            "out of memory, predicted to fit": self.count(False, True),
            "out of memory, predicted not to fit": self.count(False, False),
            "not described": self.count(True, None) + self.count(False, None),
        }


def read_descriptions() -> tuple[list[Table], dict[str, dict[str, Any]], dict[str, More]]:
    """Return the tables, the models' settings, and what theirs hold, by name."""
    content = tomllib.loads(DESCRIPTIONS.read_text())
    more = {name: More(**one) for name, one in content["more"].items()}
    tables = [
        Table(**{**one, "rows": [Description(**row) for row in one["rows"]]}) for one in content["tables"]
    ]
    return tables, content["models"], more


def judge_table(folder: Path, table: Table, models: Mapping[str, Any], more: Mapping[str, More]) -> Judged:
    """Return the answer to every row of the table's file in this folder that was run."""
    answers = []
    for row in read_table(folder / table.file):
        if table.left_out and table.left_out in row.values():
            continue
        case = ", ".join(row[name] for name in table.case if row[name])
        needs_gib, by = _answer(table, row, models, more)
        answers.append(Answer(case, table.full not in row.values(), needs_gib, table.device_gib, by))
    return Judged(table, answers)


def _answer(
    table: Table, row: Mapping[str, str], models: Mapping[str, Any], more: Mapping[str, More]
) -> tuple[float | None, str]:
    """Return the GiB of the device that a row needs, and what answers; or None, and why nothing does."""
    found = next((one for one in table.rows if one.matches(row)), Description({}, why="no description"))
    if found.why:
        return None, found.why
    if found.formulas:
        return _answer_by_formulas(table, row, **found.formulas), FORMULAS
    model = found.model or ", ".join(row[name] for name in table.model)
    if model not in models:
        return None, f"no sizes of {model}"
    given = {setting: row[column] for setting, column in table.columns.items() if row[column]}
    settings = {**ALWAYS, **models[model], **found.settings, **given}
    batch = MICRO_BATCHES * found.ranks * int(settings["micro_batch_size"])
    settings |= {"global_batch_size": batch, "loss_chunk_tokens": settings["seq_len"]}
    config = Config.from_env({f"TRAINER_{name.upper()}": as_text(value) for name, value in settings.items()})
    try:
        step = predict_step(config, found.ranks, found.ranks)
    except NotRecorded as reason:
        return None, f"no recorded steps: {reason}"
    sizes, extras = list_sizes(config), [more[name] for name in found.more]
    peak = 0.0
    for window, (_, causes) in step.windows.items():
        ours = sum(found.held.get(cause, 1) * size for cause, size in causes.items())
        there = [one for one in extras if not one.windows or window in one.windows]
        peak = max(peak, ours + sum(one.bytes * math.prod(sizes[name] for name in one.of) for one in there))
    return Device(table.device_gib, int(found.ranks > 1)).needs_gib(round(peak)), RECORDED


def list_sizes(config: Config) -> dict[str, int]:
    """Return the sizes of a run that a description multiplies."""
    shape = read_shape(config)
    return {
        "tokens": config.micro_batch_size * config.seq_len,
        "hidden": shape.hidden,
        "intermediate": shape.intermediate,
        "layers": shape.layers,
        "vocabulary": shape.vocab,
        "parameters": sum(map(math.prod, parameter_shapes(shape).values())),
    }


def _answer_by_formulas(
    table: Table, row: Mapping[str, str], engine: str, variant: str, stages: str
) -> float:
    """Return the GiB of the device that a row of a GPT decoder with a layout needs."""
    sizes = ("layers", "hidden", "heads", "vocab", "dp", "tp", "pp", "zero_stage", "micro_batch", "seq_len")
    layers, hidden, heads, vocabulary, dp, tp, pp, zero_stage, rows, tokens = (
        int(row[name]) for name in sizes
    )
    # two matrices of 4 x hidden have as many weights as three of 8 / 3
    shape = Shape(layers, hidden, heads, heads, 8 * hidden // 3, vocabulary, tied=True)
    micro_batches = int(row["global_batch"]) // (dp * rows)
    layout = Layout(dp, tp, pp, 1, zero_stage, micro_batches, tokens)
    file = build_operations(replace(read_engine(engine), stages=stages), shape, layout, variant)
    device = Device(table.device_gib, count_groups(file, layout.ranks))
    return device.needs_gib(file.peak(rows, layout.ranks).total)
