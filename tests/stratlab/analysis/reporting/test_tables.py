"""The CSV tables: what is written, what explains it, and what a spreadsheet would make of it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.reporting.table_schema import SCHEMA, SCHEMA_VERSION
from stratlab.analysis.reporting.tables import FROM_REPORT, write_tables
from tests.stratlab.analysis.example_report import blank, build_example, build_example_ranks

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "analysis.md"


def write(report: dict[str, Any], folder: Path) -> dict[str, list[list[str]]]:
    write_tables(folder, report, build_example_ranks(report))
    return {path.stem: list(csv.reader(path.open(newline=""))) for path in folder.glob("*.csv")}


def test_every_table_is_written_with_its_columns(tmp_path: Path) -> None:
    found = write(build_example(), tmp_path)
    assert {name: lines[0] for name, lines in found.items()} == {
        name: list(columns) for name, columns in SCHEMA.items()
    }
    rows = {name: len(lines) - 1 for name, lines in found.items()}
    assert rows == {
        "rank_metrics": 2,
        "step_metrics": 6,
        "phase_metrics": 30,
        "kernel_stats": 10,
        "collective_stats": 2,
        "copy_stats": 4,
        "idle_stats": 2,
        "memory_curve": 600,
        "hta_status": 2,
        "quality": 0,
    }
    step = dict(zip(*found["step_metrics"][:2], strict=True))
    assert (step["run"], step["rank"], step["step"], step["step_ms"]) == ("ddp", "0", "10", "100.0")
    exposed = float(step["comm_exposed_ms"])
    total = float(step["compute_ms"]) + exposed + float(step["copy_exposed_ms"]) + float(step["idle_ms"])
    assert total == pytest.approx(float(step["step_ms"]))
    copy = dict(zip(found["copy_stats"][0], found["copy_stats"][2], strict=True))
    assert copy["kind"] == "Memset" and copy["bytes"] == copy["gbps"] == ""
    assert found["hta_status"][2][-1] == "temporal_breakdown.csv"


def test_rows_have_the_columns_of_the_schema(plain_report: dict[str, Any]) -> None:
    """A number that the analysis adds and nobody explains, or an explained one that it drops."""
    for table, key in FROM_REPORT.items():
        for report in (plain_report, build_example()):
            if report[key]:
                assert {"run", *report[key][0]} == set(SCHEMA[table]), table
    report = build_example()
    for table, rows in (("kernel_stats", "kernels"), ("memory_curve", "memory")):
        row = getattr(build_example_ranks(report)[0], rows)[0]
        assert {"run", *row.__dataclass_fields__} == set(SCHEMA[table])


def test_schema_json_explains_every_written_column(tmp_path: Path) -> None:
    found = write(build_example(), tmp_path)
    schema = json.loads((tmp_path / "schema.json").read_text())
    assert schema["schema_version"] == SCHEMA_VERSION == 2
    assert {f"{name}.csv": lines[0] for name, lines in found.items()} == {
        name: list(columns) for name, columns in schema["tables"].items()
    }
    units = {"ms": "ms", "us": "us", "pct": "%", "gbps": "GB/s", "gib": "GiB", "mib": "MiB", "bytes": "bytes"}
    for columns in schema["tables"].values():
        for name, said in columns.items():
            named = [units[word] for word in name.split("_") if word in units]
            assert said["meaning"] and said["unit"] in (named or ["", "s"]), name


def test_the_document_explains_the_same() -> None:
    """One line per column: | `name` | unit | meaning |, below a heading with the table's name."""
    said: dict[str, dict[str, tuple[str, str]]] = {}
    for section in DOCUMENT.read_text().split("\n### ")[1:]:
        title = section.partition("\n")[0].strip().strip("`").removesuffix(".csv")
        lines = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", section, re.M)
        if lines:
            said[title] = {name: (unit.strip(), meaning) for name, unit, meaning in lines}
    assert said == SCHEMA


def test_text_is_no_formula_and_unknown_is_empty(tmp_path: Path) -> None:
    report = build_example()
    report["run"]["run"] = "=cmd|' /C calc'!A0"
    evil = ["+1", "-1", "@x", "\tx", "\rx", "=1", "a=1"]
    report["quality"] = [{"action": "noted", "reason": text, "file": None, "rank": None} for text in evil]
    report["steps"][0]["idle_ms"] = -1.5
    found = write(report, tmp_path)
    assert [line[2] for line in found["quality"][1:]] == [
        *("'+1", "'-1", "'@x", "'\tx", "'\rx", "'=1"),
        "a=1",
    ]
    assert {line[0] for line in found["quality"][1:]} == {"'=cmd|' /C calc'!A0"}
    assert found["quality"][1][3:] == ["", ""]
    assert dict(zip(*found["step_metrics"][:2], strict=True))["idle_ms"] == "-1.5"  # a number stays one
    report = blank(build_example("cpu"))
    write_tables(tmp_path / "blank", report, [])
    with (tmp_path / "blank" / "rank_metrics.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert len(lines) == 3 and {cell for line in lines[1:] for cell in line[4:]} == {""}
