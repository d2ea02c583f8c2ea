"""Published step times as cases: tables.toml has the columns, the machines, and the rules by which rows calibrate.

    tables.toml ─▶ read_tables ─▶ judge: calibration rows of the shipped file ─▶ fit ─▶ every other row, predicted

The calibration rows of a set stand at even distances in its list, sorted by `order`. They are never judged, and no
other row changes a scalar. A set without calibration rows takes the scalars of another one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.backtest import nanotron
from benchmarks.backtest.counts import Shape, layers_of, read_table
from benchmarks.backtest.report import Bar
from benchmarks.backtest.times.engine import Case, Engine, Machine, evaluate, prepare, read_engine
from benchmarks.backtest.times.fitting import Fit, fit_scalars
from benchmarks.backtest.times.scores import (
    Predicted,
    Regret,
    find_outliers,
    list_regrets,
    score,
)
from stratlab_spec.step_time.collectives import EFA_P5, HIGH, IN_NODE, LOW, InNode, Links, Network
from stratlab_spec.step_time.kernels import CARDS

TABLES = Path(__file__).with_name("tables.toml")


@dataclass(frozen=True)
class Rows:
    """A set of rows of a table that is judged by itself.

    Attributes:
        where: formula over the columns: which rows.
        calibration: how many of them calibrate; 0 = the scalars of set `scalars_of`.
        order: columns by which the rows are sorted, from which the calibration rows are taken at even distances.
        family: columns that runs of one question share.
        bars: figure of `score` -> at most, or at least if it starts with ">=".
    """

    name: str
    where: str
    machine: str
    family: Sequence[str]
    order: Sequence[str] = ()
    calibration: int = 0
    scalars_of: str = ""
    stages: str = ""
    """Instead of the table's."""
    bars: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """One published table.

    Attributes:
        engine: of engines/.
        keep: formula: rows that count at all.
        sizes: names of the engine's formulas -> formulas over the columns; earlier names may be used.
        measured_s: formula, seconds of a step.
        memory_share: formula, printed memory as a share of the card's.
        stages: how layers become pipeline stages (counts.layers_of).
        case: columns that name a row.
    """

    name: str
    file: str
    engine: str
    keep: str
    sizes: Mapping[str, str]
    measured_s: str
    stages: str
    case: Sequence[str]
    sets: Sequence[Rows]
    memory_share: str = "0"
    models: str = ""
    """File with a row of further columns for each value of column `model`."""


@dataclass(frozen=True)
class Judged:
    """One set with its predictions."""

    table: Table
    rows: Rows
    fit: Fit
    calibration: Sequence[str]
    predicted: Sequence[Predicted]

    @property
    def name(self) -> str:
        return f"{self.table.name}, {self.rows.name}"

    @property
    def figures(self) -> dict[str, float]:
        return score(self.predicted)

    @property
    def regrets(self) -> list[Regret]:
        return list_regrets(self.predicted)

    @property
    def bars(self) -> list[Bar]:
        figures, found = self.figures, []
        for what, text in self.rows.bars.items():
            sign = ">=" if text.startswith(">=") else "<="
            if what in figures:
                bar = float(text.removeprefix(">="))
                found.append(Bar(LABELS[what], figures[what], sign, bar, "%", int(figures["rows"])))
        return found


LABELS = {
    "mean": "mean error of the step time",
    "median": "median error of the step time",
    "p95": "p95 of the error of the step time",
    "pairs_in_order": "pairs more than 3 % apart in the right order",
    "regret": "mean regret of the recommendation",
    "regret_p95": "p95 of the regret",
    "regret_worst": "largest regret",
    "outliers_pct": "rows slower than both neighbours",
}


def read_tables() -> tuple[list[Table], dict[str, Machine]]:
    """Return the tables and the machines, by name."""
    content = tomllib.loads(TABLES.read_text())
    machines = {name: _read_machine(**one) for name, one in content["machines"].items()}
    tables = [Table(**{**one, "sets": [Rows(**rows) for rows in one["sets"]]}) for one in content["tables"]]
    return tables, machines


def _read_machine(
    card: str,
    network: str,
    node_gb_per_s: float = 0.0,
    in_node: Mapping[str, Any] | None = None,
    **rates: Any,
) -> Machine:
    links = dict(IN_NODE.get(card.partition("-")[0], {}))
    for kind, rows in (in_node or {}).items():
        links[kind] = {int(ranks): InNode(*row) for ranks, row in rows.items()}
    joined = EFA_P5 if network == "efa-p5" else Network(network, node_gb_per_s)
    return Machine(replace(CARDS[card], **rates), Links(links, joined))


def read_cases(table: Table, rows: Rows, machine: Machine, folder: Path) -> list[tuple[Case, dict[str, Any]]]:
    """Return the cases of a set with their columns, in the set's order."""
    more = {}
    if table.models:
        more = {row["model"]: row for row in read_table(Path(__file__).parents[1] / "data" / table.models)}
    found = []
    for row in read_table(folder / table.file):
        texts = {**more.get(row.get("model"), {}), **row}
        columns: dict[str, Any] = {name: _as_number(text) for name, text in texts.items()}
        if evaluate(table.keep, columns) and evaluate(rows.where, columns):
            found.append((_build_case(table, rows, machine, columns), columns))
    found.sort(key=lambda pair: [pair[1][name] for name in rows.order] + [pair[0].name])
    return found


def _build_case(table: Table, rows: Rows, machine: Machine, columns: Mapping[str, Any]) -> Case:
    sizes: dict[str, float] = {}
    for name, formula in table.sizes.items():
        sizes[name] = evaluate(formula, {**columns, **sizes})
    layers, pp = int(sizes["layers"]), int(sizes["pp"])
    shape = Shape(
        layers,
        int(sizes["hidden"]),
        int(sizes["heads"]),
        int(sizes["heads"]),
        int(sizes["intermediate"]),
        int(sizes["vocabulary"]),
    )
    how = rows.stages or table.stages
    stages = layers_of(shape, pp, how)
    head, loss = pp - 1, pp - 1
    if (
        table.stages == "by cost"
    ):  # the head is a block, and what follows it goes on where the next stage begins
        head = _stage_of_head(shape, stages)
        loss = min(head + 1, pp - 1)
    return Case(
        name=" ".join(f"{name}={columns[name]}" for name in table.case if columns[name] != ""),
        machine=machine,
        sizes=sizes,
        stages=stages,
        head_stage=head,
        loss_stage=loss,
        micro_batches=int(sizes["micro_batches"]),
        measured_s=evaluate(table.measured_s, {**columns, **sizes}),
        family=" ".join(str(columns[name]) for name in rows.family),
        memory_share=evaluate(table.memory_share, columns),
        tags=columns,
    )


def _stage_of_head(shape: Shape, stages: Sequence[int]) -> int:
    """Return the stage that the layers have not filled (nanotron, models/base.py: build_model)."""
    whole = shape.layers * shape.layer_weights + shape.head_weights
    full = (
        shape.layers * shape.layer_weights > whole * (stage + 1) / len(stages) for stage in range(len(stages))
    )
    return sum(full)


def _as_number(text: str) -> float | str:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def choose_evenly(rows: Sequence[Any], count: int) -> list[Any]:
    """Return the first, the last, and others at even distances between them."""
    return [rows[round(at * (len(rows) - 1) / (count - 1))] for at in range(count)]


def _spread(engine: Engine, case: Case, fit: Fit, elsewhere: bool) -> tuple[float, float]:
    """Return the ends of the printed band: the network's fast and slow runs, and on both sides the fit's half-width."""
    width = 1 + fit.half_width_pct(elsewhere) / 100
    fast, slow = (prepare(engine, case, bandwidth).seconds(fit.values) for bandwidth in (HIGH, LOW))
    return fast / width, slow * width


def predict_memory(table: Table, columns: Mapping[str, Any]) -> float:
    """Return the predicted memory as a share of the card's, by the model of memory; 0 = the table has no description.

    That of nanotron is the variant that holds more: its table does not name the one that ran.
    """
    if table.name != "nanotron":
        return 0.0
    run = nanotron.read_run(columns)
    return max(
        nanotron.share_of_device(run, variant) for variant in nanotron.read_engine("nanotron").variants
    )


def judge_sets(shipped: Path, folder: Path, wanted: Sequence[str] = ()) -> list[Judged]:
    """Return every set that the folder has rows of.

    Args:
        shipped: with the calibration rows.
        wanted: names of tables; empty = all.
    """
    tables, machines = read_tables()
    known = {f"{table.name}, {rows.name}": (table, rows) for table in tables for rows in table.sets}
    fits: dict[str, tuple[Fit, list[str]]] = {}
    found = []
    for table, rows in known.values():
        if (wanted and table.name not in wanted) or not (folder / table.file).is_file():
            continue
        engine, machine = read_engine(table.engine), machines[rows.machine]
        cases = read_cases(table, rows, machine, folder)
        source = rows.scalars_of or f"{table.name}, {rows.name}"
        if cases and source not in fits:
            fits[source] = _calibrate(*known[source], machines, shipped)
        fit, chosen = fits.get(source, (None, []))
        cases = [(case, columns) for case, columns in cases if case.name not in chosen]
        if fit is None or not cases:
            continue
        outliers = find_outliers([case for case, _ in cases])
        elsewhere = known[source][1].machine != rows.machine
        predicted = [
            Predicted(
                case,
                prepare(engine, case).seconds(fit.values),
                *_spread(engine, case, fit, elsewhere),
                case.name in outliers,
                predict_memory(table, columns),
            )
            for case, columns in cases
        ]
        found.append(Judged(table, rows, fit, chosen, predicted))
    return found


def _calibrate(
    table: Table, rows: Rows, machines: Mapping[str, Machine], shipped: Path
) -> tuple[Fit, list[str]]:
    """Return the fit of a set with calibration rows, and their names."""
    cases = [case for case, _ in read_cases(table, rows, machines[rows.machine], shipped)]
    chosen, engine = choose_evenly(cases, rows.calibration), read_engine(table.engine)
    fit = fit_scalars([prepare(engine, case) for case in chosen], engine.scalars)
    return fit, [case.name for case in chosen]
