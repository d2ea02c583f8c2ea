"""The step times of the back-test as JSON, as rows, and as a part of the page."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.backtest.report import WORST, Bar
from benchmarks.backtest.times.scores import Predicted, score
from benchmarks.backtest.times.tables import Judged

ROWS = 50
"""Fewer say nothing of a share."""
INSIDE_PCT, WIDTH_PER_ERROR = (85.0, 95.0), 2.6
COLUMNS = (
    "set",
    "case",
    "predicted_s",
    "measured_s",
    "error_pct",
    "low_s",
    "high_s",
    "inside",
    "outlier",
)
EXPLAINED = (
    "Step times from descriptions of foreign engines (`benchmarks/backtest/times/engines`), by the kernels,",
    "collectives and schedules of `stratlab_spec/step_time`. The scalars of a machine are fitted to rows that a rule",
    "chooses (`times/tables.toml`, from before the first fit); those are not judged. The printed band holds 90 % of a",
    "double exponential distribution with the mean size of the errors of calibration rows that a fold leaves out.",
    "Between nodes it also has the 5th and the 95th percentile of the network's bandwidth. By scalars of another",
    "machine the mean error is taken as at least 6 %. Pairs: of one family, more than 3 % apart. Regret: how much",
    "longer than the best the recommended run of a family takes. Runs that are predicted to hold more than 85 % of",
    "the memory are not recommended.",
)


def list_bars(judged: Sequence[Judged]) -> list[tuple[str, Bar]]:
    """Return (source, bar) of every set, and of the band over all of them."""
    found = [(one.name, bar) for one in judged for bar in one.bars]
    pooled = pool(judged)
    if (rows := int(pooled.get("rows", 0))) >= ROWS:
        low, high = INSIDE_PCT
        found += [
            ("all sets", Bar("rows inside the printed band", pooled["inside"], ">=", low, "%", rows)),
            ("all sets", Bar("rows inside the printed band", pooled["inside"], "<=", high, "%", rows)),
            (
                "all sets",
                Bar(
                    "half-width of the band by mean error",
                    pooled["half_width_per_error"],
                    "<=",
                    WIDTH_PER_ERROR,
                    "",
                    rows,
                ),
            ),
        ]
    return found


def pool(judged: Sequence[Judged]) -> dict[str, float]:
    """Return the figures of all rows, each once for each machine whose scalars predict it."""
    rows: dict[tuple, Predicted] = {}
    for one in judged:
        source = one.rows.scalars_of or one.name
        rows |= {(source, each.case.name): each for each in one.predicted}
    return score([*rows.values()]) if rows else {}


def as_dict(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the part of reports/backtest.json."""
    bars = list_bars(judged)
    return {one.name: _set_as_dict(one) for one in judged} | {
        "all sets": {
            "figures": _rounded(pool(judged)),
            "bars": [asdict(bar) | {"met": bar.met} for name, bar in bars if name == "all sets"],
        }
    }


def _set_as_dict(one: Judged) -> dict[str, Any]:
    return {
        "scalars_of": one.rows.scalars_of or one.name,
        "scalars": {
            name: {"value": round(value, 4), "uncertainty_pct": round(one.fit.uncertainty_pct[name], 1)}
            for name, value in one.fit.values.items()
        },
        "calibration": list(one.calibration),
        "figures": _rounded(one.figures),
        "bars": [asdict(bar) | {"found": round(bar.found, 2), "met": bar.met} for bar in one.bars],
        "outliers": [each.case.name for each in one.predicted if each.is_outlier],
        "notes": list(one.rows.notes),
    }


def _rounded(figures: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else round(value, 2) for name, value in figures.items()}


def write_rows(path: Path, judged: Sequence[Judged]) -> None:
    """Write every judged row."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for one in judged:
            for row in one.predicted:
                times = [f"{value:.4g}" for value in (row.seconds, row.case.measured_s)]
                band = [f"{value:.4g}" for value in (row.low_s, row.high_s)]
                flags = (int(row.is_inside), int(row.is_outlier))
                table.writerow((one.name, row.case.name, *times, f"{row.error_pct:.2f}", *band, *flags))


def build_lines(judged: Sequence[Judged], rows_file: str) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from ("## Step times", "", *EXPLAINED, "")
    yield "| rows | number | mean error % | median % | p95 % | bias % | pairs in order % | regret %, p95, worst |"
    yield "|---|---|---|---|---|---|---|---|"
    sets = [(one.name, one.figures) for one in judged] + [("all sets", pool(judged))]
    for name, found in sets:
        errors = " | ".join(f"{found[key]:.1f}" for key in ("mean", "median", "p95", "bias"))
        pairs = f"{found['pairs_in_order']:.1f} ({found['pairs']:.0f})" if found["pairs"] else "-"
        regret = ", ".join(f"{found.get(key, 0):.1f}" for key in ("regret", "regret_p95", "regret_worst"))
        yield f"| {name} | {found['rows']:.0f} | {errors} | {pairs} | {regret if found.get('families') else '-'} |"
    yield from (
        "",
        "| rows | inside the band % | half-width % | by mean error | slower than both neighbours |",
    )
    yield "|---|---|---|---|---|"
    for name, found in sets:
        band = f"{found['inside']:.1f} | {found['half_width']:.1f} | {found['half_width_per_error']:.2f}"
        without = f"{found['outliers']:.0f}; without them mean {found['mean_without']:.1f}"
        yield f"| {name} | {band} | {without} |"
    for one in judged:
        yield from ("", f"### {one.name}", "")
        yield from (f"* {note}" for note in one.rows.notes)
        if one.rows.scalars_of:
            yield f"* scalars of {one.rows.scalars_of}"
        else:
            scalars = (f"{name} {_spell(one, name)}" for name in one.fit.values)
            yield f"* {len(one.calibration)} calibration rows: {', '.join(scalars)}"
        if one.name == "nanotron, one node, all that ran":
            chosen = (f"{each.recommended} ({100 * each.memory_share:.0f} % printed)" for each in one.regrets)
            yield f"* recommended: {'; '.join(chosen)}"
        yield from ("", f"| run (the {WORST} that are furthest off) | predicted s | measured s | error % |")
        yield "|---|---|---|---|"
        for row in sorted(one.predicted, key=lambda each: -abs(each.error_pct))[:WORST]:
            times = f"{row.seconds:.4g} | {row.case.measured_s:.4g}"
            yield f"| {row.case.name} | {times} | {row.error_pct:+.1f} |"
    yield from ("", f"Every row: `{rows_file}`.")


def _spell(one: Judged, name: str) -> str:
    return f"{one.fit.values[name]:.3g} +- {one.fit.uncertainty_pct[name]:.0f} %"
