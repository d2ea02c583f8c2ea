"""Errors of predictions, the bars they are held against, and the report: JSON for the suite, rows as CSV, a page."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.backtest.matrices import Answer, Description, Judged

WORST = 12
"""Rows of a large source that are listed one by one."""
FEW = 50


@dataclass(frozen=True)
class Row:
    """One run: GiB predicted and measured. `group`: its key for summaries."""

    case: str
    predicted_gib: float
    measured_gib: float
    group: str

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_gib / self.measured_gib - 1)


@dataclass(frozen=True)
class Bar:
    """The bar, the result, and the number of rows. `sign`: "<=" or ">=", on which side it is met."""

    what: str
    found: float
    sign: str
    bar: float
    unit: str
    rows: int

    @property
    def met(self) -> bool:
        return self.found <= self.bar if self.sign == "<=" else self.found >= self.bar


@dataclass(frozen=True)
class Spread:
    """The spread of the errors of some rows, in percent: without their signs, except for the bias."""

    rows: int
    mean: float
    p95: float
    largest: float
    bias: float


def spread(errors: Sequence[float]) -> Spread:
    """Return the spread; the p95 is the smallest error that 95 of 100 rows do not exceed."""
    sizes = sorted(abs(error) for error in errors)
    p95 = sizes[math.ceil(0.95 * len(sizes)) - 1]
    return Spread(len(sizes), mean(sizes), p95, sizes[-1], mean(errors))


@dataclass(frozen=True)
class Source:
    """One published table, judged. `notes`: facts for its readers, in sentences."""

    name: str
    engine: str
    what: str
    rows: Sequence[Row]
    bars: Sequence[Bar]
    notes: Sequence[str]


def as_dict(sources: Sequence[Source], tables: Sequence[Judged]) -> dict[str, Any]:
    """Return the content of reports/backtest.json."""
    return {
        "schema_version": 3,
        "what": "memory predicted by stratlab's extrapolation from a description of a foreign engine, or from recorded "
        "steps and what differs, against what was measured; GiB; nothing is fitted to rows that are judged",
        "sources": {one.name: _source(one) for one in sources},
        "matrices": {one.table.name: _matrix(one) for one in tables},
    }


def _matrix(one: Judged) -> dict[str, Any]:
    return {
        "engine": one.table.engine,
        "device_gib": one.table.device_gib,
        "rows": one.matrix,
        "by": dict(Counter(answer.by for answer in one.answers)),
        "wrong": {answer.case: _describe_wrong(answer) for answer in _list_wrong(one)},
        "notes": list(one.table.notes),
    }


def _list_wrong(one: Judged) -> list[Answer]:
    return [answer for answer in one.answers if answer.predicted not in (None, answer.fits)]


def _describe_wrong(answer: Answer) -> str:
    return f"{'ran' if answer.fits else 'out of memory'}, predicted {answer.needs_gib:.1f} GiB"


def _source(one: Source) -> dict[str, Any]:
    return {
        "engine": one.engine,
        "what": one.what,
        "bars": [asdict(bar) | {"found": round(bar.found, 2), "met": bar.met} for bar in one.bars],
        "notes": list(one.notes),
        "groups": {name: asdict(found) for name, found in _groups(one)},
        "rows": {
            row.case: f"predicted {row.predicted_gib:.2f}, measured {row.measured_gib:.2f}, {row.error_pct:+.2f} %"
            for row in _listed(one)
        },
    }


def _groups(one: Source) -> Iterator[tuple[str, Any]]:
    for name in sorted({row.group for row in one.rows}):
        yield name, spread([row.error_pct for row in one.rows if row.group == name])


def _listed(one: Source) -> Sequence[Row]:
    """Return all rows, or, of many, the rows with the largest errors."""
    if len(one.rows) <= FEW:
        return one.rows
    return sorted(one.rows, key=lambda row: -abs(row.error_pct))[:WORST]


def write_rows(path: Path, sources: Sequence[Source], tables: Sequence[Judged]) -> None:
    """Write every row: its GiB predicted and measured and its error in percent, or its verdicts and what answers."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        names = (
            "source",
            "case",
            "predicted_gib",
            "measured_gib",
            "error_pct",
            "ran",
            "predicted_to_fit",
            "by",
        )
        table.writerow(names)
        for one in sources:
            for row in one.rows:
                sizes = (f"{row.predicted_gib:.2f}", f"{row.measured_gib:.2f}", f"{row.error_pct:.2f}")
                table.writerow((one.name, row.case, *sizes, "", "", ""))
        for judged in tables:
            for answer in judged.answers:
                needs = "" if answer.needs_gib is None else f"{answer.needs_gib:.2f}"
                verdict = "" if answer.predicted is None else int(answer.predicted)
                table.writerow(
                    (judged.table.name, answer.case, needs, "", "", int(answer.fits), verdict, answer.by)
                )


def build_page(
    sources: Sequence[Source],
    tables: Sequence[Judged],
    rows_file: str,
    time_bars: Sequence[tuple[str, Bar]] = (),
    time_lines: Sequence[str] = (),
) -> str:
    """Return Markdown: bars, then each source with its groups and rows, then the step times."""
    lines = [
        "# The models of memory and of step times against published measurements",
        "",
        "Written by `make backtest`. From a description of what a foreign engine holds (`benchmarks/backtest/engines`,",
        "read in its sources) small counts are made as the trainer makes them of its own engines; `stratlab predict`'s",
        "extrapolation and device answer from them. Nothing is fitted to rows that are judged, and nothing here says",
        "how our own engines do on a GPU.",
        "",
        *_bar_table([(one.name, bar) for one in sources for bar in one.bars] + [*time_bars]),
    ]
    for one in sources:
        lines += ["", f"## {one.name}", "", f"{one.engine}: {one.what}.", ""]
        lines += [f"* {note}" for note in one.notes]
        lines += [
            "",
            "| rows | number | mean error % | p95 % | largest % | bias % |",
            "|---|---|---|---|---|---|",
        ]
        for name, found in _groups(one):
            figures = (found.mean, found.p95, found.largest, found.bias)
            lines.append(f"| {name} | {found.rows} | {' | '.join(f'{figure:.2f}' for figure in figures)} |")
        shown = _listed(one)
        which = "" if len(shown) == len(one.rows) else f" (the {len(shown)} that are furthest off)"
        lines += ["", f"| run{which} | predicted GiB | measured GiB | error % |", "|---|---|---|---|"]
        for row in shown:
            lines.append(
                f"| {row.case} | {row.predicted_gib:.2f} | {row.measured_gib:.2f} | {row.error_pct:+.2f} |"
            )
    if tables:
        lines += ["", *_matrix_lines(tables)]
    lines += ["", f"Every row: `{rows_file}`."]
    return "\n".join([*lines, *(["", *time_lines] if time_lines else []), ""])


def _matrix_lines(tables: Sequence[Judged]) -> Iterator[str]:
    yield "## Fits or not, by tables of other engines"
    yield ""
    yield "Rows of tables that name the runs that were out of memory. They have no bar, and nothing is fitted to them."
    yield "One of our strategies, with what differs, stands for each engine (`benchmarks/backtest/foreign.toml`)."
    yield "Recorded steps answer, or formulas where a row says so. A run that nearly fills the device fits."
    yield ""
    yield f"| table | {' | '.join(tables[0].matrix)} |"
    yield f"|---|{'---|' * len(tables[0].matrix)}"
    for one in tables:
        yield f"| {one.table.name} | {' | '.join(map(str, one.matrix.values()))} |"
    for one in tables:
        yield from ("", f"### {one.table.name}", "", f"{one.table.engine}; {one.table.device_gib:g} GiB.", "")
        yield from (f"* {note}" for note in one.table.notes)
        for answer in _list_wrong(one):
            yield f"* wrong: {answer.case}: {_describe_wrong(answer)}"
        reasons = Counter(answer.by for answer in one.answers if answer.predicted is None)
        yield from (f"* not described, {count} rows: {why}" for why, count in reasons.items())
        yield from ("", "| rows | of ours | what differs |", "|---|---|---|")
        for each in one.table.rows:
            if not each.why:
                yield f"| {_spell(each.when)} | {_spell_ours(each)} | {each.differs} |"


def _spell(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} `{value}`" for name, value in values.items()).replace("|", "\\|")


def _spell_ours(one: Description) -> str:
    if one.formulas:
        return f"formulas, {_spell(one.formulas)}"
    return f"{_spell(one.settings)}, ranks `{one.ranks}`"


def _bar_table(bars: Sequence[tuple[str, Bar]]) -> Iterator[str]:
    yield "| source | what | rows | found | bar | met |"
    yield "|---|---|---|---|---|---|"
    for name, bar in bars:
        met = "yes" if bar.met else "**no**"
        wanted = f"{'at most' if bar.sign == '<=' else 'at least'} {bar.bar:g} {bar.unit}"
        yield f"| {name} | {bar.what} | {bar.rows} | {bar.found:.2f} {bar.unit} | {wanted} | {met} |"
