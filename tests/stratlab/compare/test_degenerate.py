"""A layout without a dimension that its name promises: shown and labelled, judged with nobody."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import write_report
from stratlab.compare.showing.terminal_table import terminal_table
from tests.stratlab.example_text import LAYOUTS, TextLayout, build_text_run

LACKING = TextLayout(
    "pp8", 3, {"pp": 8}, missing=("data", "tensor"), sent={"pp": 1e6}, bubble_pct=60.0
)  # as fast as the others


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The degenerate one is by far the fastest and holds least."""
    build_text_run(tmp_path / "llm", "llm-1d", LAYOUTS["llm-1d"], device="cuda", samples_per_s=100.0)
    build_text_run(tmp_path / "llm", "llm-2d", LAYOUTS["llm-2d"], device="cuda", samples_per_s=120.0)
    changes: dict[str, Any] = {"parameter_memory_gib": 1e-9, "peak_memory_gib": 0.01}
    build_text_run(tmp_path / "llm", "llm-3d", LACKING, device="cuda", samples_per_s=900.0, **changes)
    return tmp_path / "llm"


def test_it_is_kept_out_of_every_judgement(root: Path) -> None:
    report = compare(load_runs(root), memory_limit_gib=80)
    assert report["fairness"]["verdict"] == "comparable"
    assert report["fairness"]["groups"] == [["llm-1d", "llm-2d"]]
    assert report["fairness"]["not_compared"] == [
        {"run": "llm-3d", "why": "degenerate: lacks data, tensor parallelism"}
    ]
    assert report["winners"]["samples_per_s"] == "llm-2d"
    assert "llm-3d" not in report["winners"].values()
    assert [(pair["run"], pair["baseline"]) for pair in report["attribution"]["pairs"]] == [
        ("llm-1d", "llm-2d")
    ]
    assert [entry["run"] for entry in report["goals"]["fits"]] == ["llm-1d", "llm-2d"]
    assert [p["run"] for entry in report["pareto"] for p in entry["points"]] and all(
        point["run"] != "llm-3d" for entry in report["pareto"] for point in entry["points"]
    )
    assert report["noise"]["variants"] == [["llm-1d"], ["llm-2d"]]
    row = report["runs"][2]
    assert row["degenerate"] is True and row["missing_dimensions"] == ["data", "tensor"]
    assert row["samples_per_s"] == pytest.approx(900)  # what it measured is still shown


def test_no_other_run_is_explained_against_it(root: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"--baseline llm-3d: .* expected a finished run .*: llm-1d, llm-2d",
    ):
        compare(load_runs(root), baseline="llm-3d")


def test_it_is_labelled_everywhere(root: Path, tmp_path: Path) -> None:
    runs = load_runs(root)
    report = compare(runs)
    sentence = "llm-3d is not compared: degenerate: lacks data, tensor parallelism"
    assert any(remark.startswith(sentence) for remark in report["remarks"])
    console = Console(width=220, file=StringIO(), force_terminal=False)
    console.print(terminal_table(report))
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    assert "degenerate: lacks data, tensor" in printed and sentence in printed
    page = write_report(report, runs, tmp_path / "out").read_text()
    assert f'<span class="badge bad">degenerate</span> {sentence}.' in page
    assert '<span class="badge bad">data, tensor</span>' in page
    assert re.search(r'badge good">finished</span> <span class="badge bad">degenerate', page)


def test_without_it_nothing_is_left_to_compare(tmp_path: Path) -> None:
    build_text_run(tmp_path, "llm-1d", LAYOUTS["llm-1d"])
    build_text_run(tmp_path, "llm-3d", LACKING)
    fairness = compare(load_runs(tmp_path))["fairness"]
    assert fairness["verdict"] == "not comparable"
    assert fairness["reason"] == (
        "1 finished run to compare; a comparison needs two; "
        "not compared: llm-3d (degenerate: lacks data, tensor parallelism)"
    )


@pytest.mark.parametrize("told_by", ["config.json", "summary.json"])
def test_one_of_both_files_is_enough_to_know(tmp_path: Path, told_by: str) -> None:
    folder = build_text_run(tmp_path, "llm-3d", LACKING)
    other = {"config.json": "summary.json", "summary.json": "config.json"}[told_by]
    content = json.loads((folder / other).read_text())
    if other == "config.json":
        content["resolved"]["layout"].update(missing=[], degenerate=False)
    else:
        content |= {"missing_dimensions": [], "degenerate": False}
    (folder / other).write_text(json.dumps(content))
    row = compare(load_runs(tmp_path))["runs"][0]
    assert row["degenerate"] and row["missing_dimensions"] == ["data", "tensor"]


def test_a_whole_layout_is_not_degenerate(tmp_path: Path) -> None:
    build_text_run(tmp_path, "llm-3d", replace(LACKING, missing=()))
    assert compare(load_runs(tmp_path))["runs"][0]["degenerate"] is False
