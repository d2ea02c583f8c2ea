"""Rows of nanotron's table: the memory of rank 0, and which runs did not fit.

Only rank 0 writes a row, and with a pipeline rank 0 belongs to the first stage, which has no logits. The source
divides by 1024^3, so that the column is GiB. It has a column of allocated and one of reserved memory, and resets the
peak of the first within a step. So the published column is the second, or has little meaning. `choose` decides the
column and the variant of the engine on twelve rows, which are not judged afterwards. A run fits if it fits as every
variant, because the table does not name the variant.

A learner that has seen nearly all of the table measures how well the table's own columns predict its memory
(`learn_from_columns`). Another learner may be better; differences between runs with equal columns have no prediction
(`alike`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold, cross_val_predict

from benchmarks.backtest.counts import Layout, Shape, build_operations, read_engine, read_table
from benchmarks.backtest.report import Bar, Row, spread
from stratlab_spec.memory import DEVICE_GIB
from stratlab_spec.memory.prediction import RESERVED_PER_ALLOCATED, Device, count_groups
from stratlab_spec.memory.profiles import GIB, OperationsFile

FILE = "nanotron_playbook_h100.csv"
GLOBAL_ROWS = 256
READINGS = {"allocated": 1.0, "reserved": RESERVED_PER_ALLOCATED}
MEAN_PCT, P95_PCT = 7.0, 15.0
FORESEEN_PCT, FALSE_ALARMS_PCT = 90.0, 5.0
FOLDS = 20
ROWS = 200
"""Fewer are not worth a learner."""


@dataclass(frozen=True)
class Run:
    """One row. `gib`: of rank 0, if the run succeeded."""

    model: str
    shape: Shape
    layout: Layout
    rows: int
    gib: float
    succeeded: bool

    @property
    def case(self) -> str:
        at = self.layout
        return f"{self.model} dp{at.dp} tp{at.tp} pp{at.pp} zero{at.zero_stage} rows{self.rows} x{at.micro_batches}"

    @property
    def place(self) -> tuple[str, int, int, int, int]:
        """Everything but the micro-batch."""
        at = self.layout
        return self.model, at.dp, at.tp, at.pp, at.zero_stage


@dataclass(frozen=True)
class Choice:
    """How the column is read, and which variant of the engine is taken, with the mean error of both on the twelve."""

    reading: str
    variant: str
    error_pct: float


@dataclass(frozen=True)
class Failures:
    """Runs that failed: those counted as out of memory, and the others, with an unknown cause."""

    out_of_memory: Sequence[Run]
    others: Sequence[Run]


def read_runs(path: Path) -> list[Run]:
    """Return all rows of the global batch that the table is about."""
    return list(_runs(path))


def _runs(path: Path) -> Iterator[Run]:
    for given in read_table(path):
        if int(given["dp"]) * int(given["micro_batch"]) * int(given["grad_accum"]) == GLOBAL_ROWS:
            yield read_run(given)


def read_run(given: Mapping[str, Any]) -> Run:
    """Return one row of the table."""
    number: dict[str, Any] = {
        name: int(given[name]) for name in ("layers", "hidden", "heads", "intermediate", "dp", "tp", "pp")
    }
    dp, tp, pp = (number.pop(name) for name in ("dp", "tp", "pp"))
    shape = Shape(
        **number, kv_heads=number["heads"], vocabulary=int(given["vocab"]), tied=int(given["tied"]) == 1
    )
    steps, row_tokens = int(given["grad_accum"]), int(given["seq_len"])
    layout = Layout(dp, tp, pp, 1, int(given["zero_stage"]), steps, row_tokens)
    gib = float(given["memory_gb"] or 0)
    return Run(given["model"], shape, layout, int(given["micro_batch"]), gib, given["status"] == "ok")


def calibration_rows(runs: Sequence[Run]) -> list[Run]:
    """Return twelve rows: of each model the run with the least memory, the median one, and the one with the most."""
    found = []
    for model in dict.fromkeys(run.model for run in runs):
        ran = sorted((run for run in runs if run.model == model and run.gib), key=lambda run: run.gib)
        found += [ran[0], ran[len(ran) // 2], ran[-1]]
    return found


def choose(runs: Sequence[Run]) -> list[Choice]:
    """Return every reading with every variant, the one with the smallest error on these runs first."""
    found = []
    for reading, variant in product(READINGS, read_engine("nanotron").variants):
        errors = [abs(predict_column(run, reading, variant).error_pct) for run in runs]
        found.append(Choice(reading, variant, mean(errors)))
    return sorted(found, key=lambda choice: choice.error_pct)


def predict_column(run: Run, reading: str, variant: str) -> Row:
    """Return the predicted published column of a run."""
    file = _first_stage(_operations(run.shape, run.layout, variant))
    gib = READINGS[reading] * file.peak(run.rows, run.layout.ranks).total / GIB
    kind = "pp 1" if run.layout.pp == 1 else "pp > 1"
    tensor = "tp 1" if run.layout.tp == 1 else "tp > 1"
    return Row(run.case, gib, run.gib, f"{run.model}, {kind}, {tensor}")


def learn_from_columns(runs: Sequence[Run]) -> list[float]:
    """Return the errors, in percent, of a learner that has every column of the table and the predictions of both
    variants.
    """
    names = list(dict.fromkeys(run.model for run in runs))
    columns, guesses = [], []
    for run in runs:
        at = run.layout
        ours = [
            predict_column(run, "allocated", variant).predicted_gib
            for variant in read_engine("nanotron").variants
        ]
        guesses.append(ours[0])
        sizes = [math.log(size) for size in (at.dp, at.tp, at.pp, at.micro_batches, run.rows)]
        columns.append(
            [names.index(run.model), at.zero_stage, *sizes, *map(math.log, ours), ours[1] / ours[0]]
        )
    return learn_errors(columns, guesses, [run.gib for run in runs])


def learn_errors(
    columns: Sequence[Sequence[float]], guess_gib: Sequence[float], measured_gib: Sequence[float]
) -> list[float]:
    """Return percent, with signs, row by row: a forest of trees that has learnt from the other nineteen twentieths.

    Args:
        columns: of every row, features for its memory.
        guess_gib: the forest's starting value.
        measured_gib: the measured memory.
    """
    missing = np.log(measured_gib) - np.log(guess_gib)
    forest = RandomForestRegressor(100, random_state=0)
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    found = cross_val_predict(forest, np.array(columns), missing, cv=folds)
    return [100 * (math.exp(error) - 1) for error in found - missing]


def fits_in_all(run: Run) -> bool:
    """Return whether a run fits as every variant: the table does not name its variant."""
    return all(fits(run, variant) for variant in read_engine("nanotron").variants)


def fits(run: Run, variant: str) -> bool:
    """Return whether `stratlab predict` finds room for the fullest rank on an H100 of 80 GB, even if nearly full."""
    return share_of_device(run, variant) <= 1


def share_of_device(run: Run, variant: str) -> float:
    """Return the predicted memory of the fullest rank, as a share of an H100 of 80 GB."""
    file = _operations(run.shape, run.layout, variant)
    ranks = run.layout.ranks
    device = Device(DEVICE_GIB, count_groups(file, ranks))
    return device.needs_gib(file.peak(run.rows, ranks).total) / device.gib


@cache
def _operations(shape: Shape, layout: Layout, variant: str) -> OperationsFile:
    return build_operations(read_engine("nanotron"), shape, layout, variant)


def _first_stage(file: OperationsFile) -> OperationsFile:
    first = [sample for sample in file.samples if sample.rank == 0]
    return OperationsFile(**{**dict(file), "samples": first})


def sort_failures(judged: Sequence[Run], known: Sequence[Run]) -> Failures:
    """Sort failed runs; out of memory are those for which a smaller micro-batch ran and no larger or equal one did."""
    ran: dict[tuple, list[int]] = defaultdict(list)
    for run in known:
        if run.succeeded:
            ran[run.place].append(run.rows)
    full, others = [], []
    for run in judged:
        if not run.succeeded:
            rows = ran.get(run.place, [])
            (full if rows and max(rows) < run.rows else others).append(run)
    return Failures(full, others)


def judge_column(rows: Sequence[Row]) -> list[Bar]:
    found = spread([row.error_pct for row in rows])
    return [
        Bar("mean error of the memory column", found.mean, "<=", MEAN_PCT, "%", found.rows),
        Bar("p95 of the error of the memory column", found.p95, "<=", P95_PCT, "%", found.rows),
    ]


def judge_failures(failures: Failures, ran: Sequence[Run], has_room: Callable[[Run], bool]) -> list[Bar]:
    """Return the bars for predicted out-of-memory, and for false alarms over the runs that succeeded."""
    full = failures.out_of_memory
    foreseen, alarms = share_foreseen(full, has_room), share_foreseen(ran, has_room)
    return [
        Bar("out of memory, foreseen", foreseen, ">=", FORESEEN_PCT, "%", len(full)),
        Bar("false alarms over runs that succeeded", alarms, "<=", FALSE_ALARMS_PCT, "%", len(ran)),
    ]


def share_foreseen(runs: Sequence[Run], has_room: Callable[[Run], bool]) -> float:
    """Return the percentage of these runs that are predicted not to fit."""
    return _share(sum(not has_room(run) for run in runs), len(runs))


def alike(runs: Sequence[Run]) -> list[Row]:
    """Return runs that must hold the same memory, because only the number of replicas without ZeRO differs.

    Each is compared with the median of its group. The table's columns cannot predict their differences.
    """
    groups: Mapping[tuple, list[Run]] = defaultdict(list)
    for run in runs:
        at = run.layout
        if run.succeeded and not at.zero_stage and at.dp > 1:
            groups[run.model, at.tp, at.pp, run.rows, at.in_flight(0)].append(run)
    found = []
    for group in groups.values():
        if len(group) > 1:
            middle = median(run.gib for run in group)
            found += [Row(run.case, middle, run.gib, "alike") for run in group]
    return found


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
