"""Layouts of one language model side by side: in tokens and perplexities; what is unknown is never 0."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import write_report
from stratlab.compare.showing.terminal_table import terminal_table
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import Report, difference, edit, judge, rows_of
from tests.stratlab.example_text import LAYOUTS, SEQ_LEN, USEFUL, TextLayout, build_text_run

FIVE = list(LAYOUTS)
LACKING = TextLayout("pp8", 3, {"pp": 8}, missing=("data", "tensor"), sent={"pp": 1e6}, bubble_pct=60.0)
GPU: dict[str, Any] = {"device": "cuda"}


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    for name, layout in LAYOUTS.items():
        build_text_run(tmp_path / "llm", name, layout)
    return load_runs(tmp_path / "llm")


def judge_layouts(root: Path, speeds: dict[str, float], layouts: dict[str, TextLayout] = LAYOUTS) -> Report:
    for name, speed in speeds.items():
        build_text_run(root, name, layouts[name], device="cuda", samples_per_s=speed)
    return judge(root)


def print_table(report: Report) -> str:
    page = io.StringIO()
    Console(width=220, file=page).print(terminal_table(report))
    return page.getvalue()


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


def test_text_and_images_are_not_compared(tmp_path: Path) -> None:
    build_text_run(tmp_path, "llm-1d", LAYOUTS["llm-1d"])
    report = judge(tmp_path, ["ddp"], device="cpu")
    assert report["fairness"]["verdict"] == "not comparable"
    assert difference(report, "num_labels")["values"] == {"ddp": 10, "llm-1d": "not of text"}
    assert difference(report, "tokenizer_sha256")["values"]["ddp"] == "not of image"
    assert [row["task"] for row in report["runs"]] == ["image", "text"]
    printed = print_table(report)
    assert "test acc %" in printed and "test perplexity" in printed


def test_a_row_counts_tokens_behind_the_warm_up(runs: list[RunRecord]) -> None:
    row = compare(runs)["runs"][2]
    assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * SEQ_LEN)
    assert row["useful_tokens_per_s"] == pytest.approx(row["samples_per_s"] * USEFUL)
    assert row["useful_tokens_pct"] == pytest.approx(100 * USEFUL / SEQ_LEN)
    assert row["test_accuracy_pct"] is None and row["test_perplexity"] == pytest.approx(
        math.exp(row["test_loss"])
    )
    assert (row["layout"], row["dimensions"], row["degenerate"]) == ("pp2.dp2.tp2", 3, False)
    assert (row["pp"], row["tp"], row["cp"], row["ep"], row["sequence_parallel"]) == (2, 2, 1, 1, False)
    assert row["wire_bytes_per_axis"] == {"pp": 1e6, "dp_shard": 2e6, "tp": 5e6}
    assert row["collectives_per_axis"]["tp"] == {"all_gather": 4}
    assert (row["pp_schedule"], row["cp_kind"]) == ("1f1b", None)


def test_mfu_counts_attention_both_ways(tmp_path: Path) -> None:
    folder = build_text_run(tmp_path, "llm-1d", LAYOUTS["llm-1d"], device="cuda")
    edit(folder / "summary.json", lambda summary: summary.update(peak_flops_per_device=1e12))
    row = judge(tmp_path)["runs"][0]
    assert row["mfu_pct"] == pytest.approx(100 * row["samples_per_s"] * 1.1e8 / 8e12)
    assert row["mfu_literature_pct"] == pytest.approx(100 * row["tokens_per_s"] * 3.2e6 / 8e12)
    assert row["mfu_useful_pct"] == pytest.approx(100 * row["useful_tokens_per_s"] * 2.9e6 / 8e12)


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
    printed = print_table(compare(runs))
    bubbles = [line.split("│")[9].strip() for line in printed.splitlines() if line.startswith("│")]
    assert bubbles == ["-", "15.0", "9.0", "8.0", "12.0"]
    assert (
        "useful tokens/s" in printed and "test perplexity" in printed and "nd pp2.dp2.tp2+sp.ep4" in printed
    )
    assert "samples/s" not in printed and "acc" not in printed


def test_two_layouts_of_the_same_size_are_no_repeats(tmp_path: Path) -> None:
    """3D and 4D differ on 8 processes in nothing but sequence parallelism."""
    report = judge_layouts(tmp_path, {"llm-3d": 100.0, "llm-4d": 120.0})
    assert report["winners"]["samples_per_s"] == "llm-4d" == report["goals"]["groups"][0]["goals"][0]["run"]
    assert report["noise"]["variants"] == [["llm-3d"], ["llm-4d"]]
    assert not any("pp2.dp2" in remark for remark in report["remarks"])


def test_two_names_of_one_layout_are_repeats_and_that_is_said(tmp_path: Path) -> None:
    """Experts need sequence parallelism in three dimensions too."""
    layouts = LAYOUTS | {"llm-3d": replace(LAYOUTS["llm-4d"], dimensions=3)}
    report = judge_layouts(tmp_path, {"llm-3d": 100.0, "llm-4d": 120.0}, layouts)
    assert report["noise"]["variants"] == [["llm-3d", "llm-4d"]]
    assert any("pp2.dp2.tp2+sp" in remark for remark in report["remarks"])


def test_runs_that_have_counted_no_collectives_show_no_bytes(tmp_path: Path) -> None:
    for name in ("llm-1d", "llm-3d"):
        build_text_run(tmp_path / "llm", name, replace(LAYOUTS[name], sent={}))
    runs = load_runs(tmp_path / "llm")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert "<h2>Layouts</h2>" in page and "Communication per axis" not in page


def test_a_layout_without_a_dimension_of_its_name_is_shown_and_judged_with_nobody(tmp_path: Path) -> None:
    """It is by far the fastest and holds least."""
    judge_layouts(tmp_path / "llm", {"llm-1d": 100.0, "llm-2d": 120.0})
    smallest: dict[str, Any] = {"parameter_memory_gib": 1e-9, "peak_memory_gib": 0.01}
    build_text_run(tmp_path / "llm", "llm-3d", LACKING, device="cuda", samples_per_s=900.0, **smallest)
    runs = load_runs(tmp_path / "llm")
    report = compare(runs, memory_limit_gib=80)
    assert report["fairness"]["verdict"] == "comparable" and report["fairness"]["groups"] == [
        ["llm-1d", "llm-2d"]
    ]
    assert [entry["run"] for entry in report["fairness"]["not_compared"]] == ["llm-3d"]
    assert report["winners"]["samples_per_s"] == "llm-2d" and "llm-3d" not in report["winners"].values()
    assert [pair["run"] for pair in report["attribution"]["pairs"]] == ["llm-1d"]
    assert [entry["run"] for entry in report["goals"]["fits"]] == ["llm-1d", "llm-2d"]
    assert {point["run"] for point in report["pareto"][0]["points"]} == {"llm-1d", "llm-2d"}
    row = rows_of(report)["llm-3d"]
    assert row["degenerate"] and row["missing_dimensions"] == ["data", "tensor"]
    assert row["samples_per_s"] == pytest.approx(900)  # what it measured is still shown
    page = write_report(report, runs, tmp_path / "out").read_text()
    assert '<span class="badge bad">degenerate</span> llm-3d' in page and "data, tensor" in print_table(
        report
    )
    with pytest.raises(UserError) as refused:
        compare(runs, baseline="llm-3d")
    assert find_codes(refused.value) == ["SL-baseline-unknown"]


@pytest.mark.parametrize("told_by", ["config.json", "summary.json"])
def test_one_of_both_files_is_enough_to_know_it(tmp_path: Path, told_by: str) -> None:
    folder = build_text_run(tmp_path, "llm-3d", LACKING)
    if told_by == "summary.json":
        layout = {"missing": [], "degenerate": False}
        edit(folder / "config.json", lambda config: config["resolved"]["layout"].update(layout))
    else:
        edit(folder / "summary.json", lambda found: found.update(missing_dimensions=[], degenerate=False))
    row = judge(tmp_path)["runs"][0]
    assert row["degenerate"] and row["missing_dimensions"] == ["data", "tensor"]
