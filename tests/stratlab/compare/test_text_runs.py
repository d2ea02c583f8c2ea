"""Layouts of one language model on page and terminal; what is unknown is never 0. Rows: test_pinned_reports.py."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import load_runs
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import difference, edit, judge, read_columns
from tests.stratlab.example_text import LACKING, LAYOUTS, build_text_run

FIVE = list(LAYOUTS)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    for name, layout in LAYOUTS.items():
        build_text_run(tmp_path / "llm", name, layout)
    return load_runs(tmp_path / "llm")


def read_table(page: str, title: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    body = page.split(f">{title}</h", 1)[1].partition("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)][1:]
    return [[re.sub("<[^>]*>", "", cell) for cell in row] for row in rows]


def test_layouts_of_one_model_are_comparable(runs: list[RunRecord], tmp_path: Path) -> None:
    report = compare(runs)
    assert report["fairness"]["verdict"] == "comparable", report["fairness"]["reason"]
    assert report["fairness"]["groups"] == [FIVE] and len(report["attribution"]["pairs"]) == 4
    assert [entry["field"] for entry in report["fairness"]["differences"]] == ["grad_accum_steps"]
    build_text_run(tmp_path / "llm", "llm-2d", LAYOUTS["llm-2d"], tokenizer="/results/qwen")
    assert judge(tmp_path / "llm")["fairness"]["verdict"] == "comparable", "where the tokenizer lies"
    path = tmp_path / "llm" / "llm-2d" / "config.json"
    edit(path, lambda config: config["resolved"].update(tokenizer_sha256="other"))
    edit(path, lambda config: config["config"].update(packing=None))
    found = judge(tmp_path / "llm")
    assert difference(found, "tokenizer_sha256")["matters"]
    assert difference(found, "packing")["values"]["llm-2d"] == "unknown"


def test_each_stage_shows_its_rank_with_most(runs: list[RunRecord]) -> None:
    one, two = compare(runs)["runs"][:2]
    assert [(stage["stage"], stage["ranks"]) for stage in one["stages"]] == [(0, 8)]
    first, last = two["stages"]
    assert (first["ranks"], last["ranks"]) == (4, 4) and last["parameters"] == 2 * first["parameters"] > 0
    assert first["state"] == pytest.approx(first["parameters"] + first["gradients"] + first["optimizer"])
    assert first["peak_memory_gib"] is None  # a CPU has no device memory
    del runs[1].ranks[0]["state_memory_gib"]["optimizer"]
    first = compare(runs)["runs"][1]["stages"][0]
    assert first["optimizer"] is None and first["state"] is None and first["parameters"] is not None


def test_the_page_shows_bubbles_bytes_and_stages(runs: list[RunRecord], tmp_path: Path) -> None:
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert "<h2>Classes" not in page and "accuracy (%)" not in page and "Validation perplexity" in page
    layouts = read_table(page, "Layouts")
    assert layouts[2][:4] == ["llm-3d", "nd", "pp2.dp2.tp2", "3"]
    assert [row[-3:-1] for row in layouts[2:4]] == [["no", "-"], ["yes", "-"]]
    bubbles = {row[0]: row[1:] for row in read_table(page, "Pipeline bubble")}
    assert list(bubbles) == FIVE[1:]
    micro = 64 // 32 // 2
    assert bubbles["llm-3d"] == ["2", "1f1b", str(micro), "9.0", f"{100 / (micro + 1):.1f}", "cpu"]
    sent = {row[0]: row[1:] for row in read_table(page, "Communication per axis")}
    assert sent["llm-1d"] == ["-", f"{8e6 / 2**20:.3f}", "-", "-", "-", f"{8e6 / 2**20:.3f}"]
    assert sent["llm-2d"][1] == "-" and sent["llm-5d"][4] == f"{3e6 / 2**20:.3f}"
    stages = read_table(page, "Memory per stage")
    assert [row[:3] for row in stages[1:3]] == [["llm-2d", "0", "4"], ["llm-2d", "1", "4"]]
    line = list(csv.DictReader(io.StringIO((tmp_path / "out" / "comparison.csv").read_text())))[3]
    assert (
        line["layout"] == "pp2.dp2.tp2+sp"
        and line["test_accuracy_pct"] == ""
        and line["degenerate"] == "False"
    )
    assert json.loads(line["wire_bytes_per_axis"]) == LAYOUTS["llm-4d"].sent


def test_the_terminal_speaks_of_tokens(runs: list[RunRecord]) -> None:
    runs[0].analysis["mean"]["bubble_pct"] = 0.0  # as the analysis says without a pipeline
    columns = read_columns(compare(runs))
    assert sorted(columns["bubble %"]) == ["-", "12.0", "15.0", "8.0", "9.0"]
    assert {"useful tokens/s", "test perplexity"} <= columns.keys()
    assert "nd pp2.dp2.tp2+sp.ep4" in columns["strategy"]
    assert not {"samples/s", "test acc %"} & columns.keys()


def test_runs_that_have_counted_no_collectives_show_no_bytes(tmp_path: Path) -> None:
    for name in ("llm-1d", "llm-3d"):
        build_text_run(tmp_path / "llm", name, replace(LAYOUTS[name], sent={}))
    runs = load_runs(tmp_path / "llm")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert "<h2>Layouts</h2>" in page and "Communication per axis" not in page


@pytest.mark.parametrize("told_by", ["config.json", "summary.json"])
def test_a_layout_without_a_dimension_of_its_name_is_shown_and_judged_with_nobody(
    tmp_path: Path, told_by: str
) -> None:
    """One of both files is enough to know it."""
    folder = build_text_run(tmp_path, "llm-3d", LACKING)
    if told_by == "summary.json":
        layout = {"missing": [], "degenerate": False}
        edit(folder / "config.json", lambda config: config["resolved"]["layout"].update(layout))
    else:
        edit(folder / "summary.json", lambda found: found.update(missing_dimensions=[], degenerate=False))
    runs = load_runs(tmp_path)
    report = compare(runs)
    assert [entry["run"] for entry in report["fairness"]["not_compared"]] == ["llm-3d"]
    page = write_report(report, runs, tmp_path / "out").read_text()
    assert '<span class="badge bad">degenerate</span> llm-3d' in page
    assert "degenerate" in read_columns(report)["status"]
    with pytest.raises(UserError) as refused:
        compare(runs, baseline="llm-3d")
    assert find_codes(refused.value) == ["SL-baseline-unknown"]
