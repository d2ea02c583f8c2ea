"""The tables of an analysis as CSV, and schema.json that explains every column of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.reporting.table_schema import SCHEMA, SCHEMA_VERSION

FROM_REPORT = {
    "rank_metrics": "ranks",
    "step_metrics": "steps",
    "phase_metrics": "phases",
    "collective_stats": "collectives",
    "copy_stats": "copies",
    "idle_stats": "idle",
    "hta_status": "hta",
    "quality": "quality",
}
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_tables(folder: Path, report: Mapping[str, Any], ranks: Sequence[RankAnalysis]) -> None:
    """Writes every table of SCHEMA, those without rows as a header alone, and schema.json.

    Text that a spreadsheet would take for a formula gets an apostrophe. An empty cell is "not known".

    Args:
        ranks: for all kernels and the memory curve; the report holds the most used kernels only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, key in FROM_REPORT.items():
        _write(folder, name, report["run"]["run"], report.get(key) or [])
    _write(folder, "kernel_stats", report["run"]["run"], (asdict(row) for r in ranks for row in r.kernels))
    _write(folder, "memory_curve", report["run"]["run"], (asdict(point) for r in ranks for point in r.memory))
    (folder / "schema.json").write_text(json.dumps(build_schema(), indent=1) + "\n", encoding="utf-8")


def build_schema() -> dict[str, Any]:
    """The content of schema.json."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tables": {
            f"{table}.csv": {
                column: {"unit": unit, "meaning": meaning} for column, (unit, meaning) in columns.items()
            }
            for table, columns in SCHEMA.items()
        },
    }


def _write(folder: Path, table: str, run: str, rows: Iterable[Mapping[str, Any]]) -> None:
    columns = list(SCHEMA[table])
    with open(folder / f"{table}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)  # ends lines with CR LF, so that a CR alone in a text is quoted
        writer.writerow(columns)
        for row in rows:
            named = {"run": run, **row}
            writer.writerow([_cell(named.get(column)) for column in columns])


def _cell(value: Any) -> Any:
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text
