"""Five layouts of one language model side by side: fair, in tokens and perplexities; what is unknown is never 0."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stratlab.compare.comparison import compare
from stratlab.compare.judging.rules import RULES
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import write_report
from stratlab.compare.showing.terminal_table import terminal_table
from stratlab.run_directory.record import RunRecord
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.example_text import LAYOUTS, SEQ_LEN, USEFUL, build_text_run

FIVE = list(LAYOUTS)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    for name, layout in LAYOUTS.items():
        build_text_run(tmp_path / "llm", name, layout)
    return load_runs(tmp_path / "llm")


def write_page(runs: list[RunRecord], folder: Path) -> str:
    return write_report(compare(runs), runs, folder).read_text()


def print_table(report: dict[str, Any]) -> str:
    console = Console(width=220, file=StringIO(), force_terminal=False)
    console.print(terminal_table(report))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def read_table(page: str, title: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    below = page.split(f">{title}</h", 1)[1]
    body = below[: below.index("</tbody>")]
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", body)
    ][1:]


def test_layouts_of_one_model_are_comparable(runs: list[RunRecord]) -> None:
    report = compare(runs)
    assert report["fairness"]["verdict"] == "comparable", report["fairness"]["reason"]
    assert report["fairness"]["groups"] == [FIVE] and report["fairness"]["not_compared"] == []
    (accumulation,) = report["fairness"]["differences"]
    assert accumulation["field"] == "grad_accum_steps" and not accumulation["matters"]
    assert accumulation["values"]["llm-1d"] < accumulation["values"]["llm-3d"]
    assert len(report["attribution"]["pairs"]) == 4


@pytest.mark.parametrize(
    "field",
    [
        *("tokenizer_sha256", "seq_len", "resolved.seq_len", "packing", "text", "flops_per_token"),
        "loss_chunk_tokens",
    ],
)
def test_what_matters_of_text_forbids_a_comparison(tmp_path: Path, field: str) -> None:
    for name in ("llm-1d", "llm-2d"):
        build_text_run(tmp_path, name, LAYOUTS[name])
    rule = next(rule for rule in RULES if rule.field == field)
    path = tmp_path / "llm-2d" / "config.json"
    for value in ("other", None):
        content = json.loads(path.read_text())
        content[rule.path[0]][rule.path[1]] = value
        path.write_text(json.dumps(content))
        report = compare(load_runs(tmp_path))
        assert report["fairness"]["verdict"] == "not comparable" and field in report["fairness"]["reason"]


def test_where_the_tokenizer_lies_does_not_matter(tmp_path: Path) -> None:
    build_text_run(tmp_path, "llm-1d", LAYOUTS["llm-1d"])
    build_text_run(tmp_path, "llm-2d", LAYOUTS["llm-2d"], tokenizer="/results/qwen")
    assert compare(load_runs(tmp_path))["fairness"]["verdict"] == "comparable"


def test_text_and_images_are_not_compared(tmp_path: Path) -> None:
    build_text_run(tmp_path, "llm-1d", LAYOUTS["llm-1d"])
    build_run_dir(tmp_path, "ddp", "ddp", hosts=["n"])
    report = compare(load_runs(tmp_path))
    assert report["fairness"]["verdict"] == "not comparable"
    found = {entry["field"]: entry["values"] for entry in report["fairness"]["differences"]}
    assert found["num_labels"] == {"ddp": 10, "llm-1d": "not of text"}
    assert found["tokenizer_sha256"]["ddp"] == "not of image"
    assert {row["task"] for row in report["runs"]} == {"image", "text"}
    printed = print_table(report)
    assert "test acc %" in printed and "test perplexity" in printed


def test_a_row_counts_tokens_behind_the_warm_up(runs: list[RunRecord]) -> None:
    row = compare(runs)["runs"][2]
    assert row["step_times_from"] == "metrics.jsonl"
    assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * SEQ_LEN)
    assert row["useful_tokens_per_s"] == pytest.approx(row["samples_per_s"] * USEFUL)
    assert row["useful_tokens_pct"] == pytest.approx(100 * USEFUL / SEQ_LEN)
    assert row["test_accuracy_pct"] is None and row["validation_accuracy_pct"] is None
    assert row["test_perplexity"] == pytest.approx(math.exp(row["test_loss"]))
    assert (row["layout"], row["dimensions"], row["degenerate"]) == ("pp2.dp2.tp2", 3, False)
    assert (row["pp"], row["tp"], row["cp"], row["ep"], row["sequence_parallel"]) == (2, 2, 1, 1, False)
    assert row["wire_bytes_per_axis"] == {"pp": 1e6, "dp_shard": 2e6, "tp": 5e6}
    assert row["collectives_per_axis"]["tp"] == {"all_gather": 4}
    assert (row["pp_schedule"], row["cp_kind"]) == ("1f1b", None)


def test_mfu_counts_attention_both_ways(tmp_path: Path) -> None:
    for name in ("llm-1d", "llm-2d"):
        folder = build_text_run(tmp_path, name, LAYOUTS[name], device="cuda")
        path = folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"peak_flops_per_device": 1e12}))
    row = compare(load_runs(tmp_path))["runs"][0]
    assert row["mfu_pct"] == pytest.approx(100 * row["samples_per_s"] * 1.1e8 / 8e12)
    assert row["mfu_literature_pct"] == pytest.approx(100 * row["tokens_per_s"] * 3.2e6 / 8e12)
    assert row["mfu_useful_pct"] == pytest.approx(100 * row["useful_tokens_per_s"] * 2.9e6 / 8e12)


def test_an_image_run_has_no_numbers_of_text(tmp_path: Path) -> None:
    build_run_dir(tmp_path, "ddp", "ddp")
    row = compare(load_runs(tmp_path))["runs"][0]
    text = (
        "tokens_per_s",
        "useful_tokens_pct",
        "mfu_literature_pct",
        "mfu_useful_pct",
        "test_perplexity",
        "layout",
        "dimensions",
    )
    assert {row[name] for name in text} == {None}
    assert row["degenerate"] is False and row["stages"] == [] and row["wire_bytes_per_axis"] == {}


def test_each_stage_shows_its_rank_with_most(runs: list[RunRecord]) -> None:
    one, two = compare(runs)["runs"][:2]
    assert [(stage["stage"], stage["ranks"]) for stage in one["stages"]] == [(0, 8)]
    assert [(stage["stage"], stage["ranks"]) for stage in two["stages"]] == [(0, 4), (1, 4)]
    first, last = two["stages"]
    assert last["parameters"] == 2 * first["parameters"] > 0
    assert first["state"] == pytest.approx(first["parameters"] + first["gradients"] + first["optimizer"])
    assert first["peak_memory_gib"] is None  # a CPU has no device memory
    del runs[1].ranks[0]["state_memory_gib"]["optimizer"]
    first = compare(runs)["runs"][1]["stages"][0]
    assert first["optimizer"] is None and first["state"] is None and first["parameters"] is not None


def test_the_page_shows_bubbles_bytes_and_stages(runs: list[RunRecord], tmp_path: Path) -> None:
    page = write_page(runs, tmp_path / "out")
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles.index("Layouts") == titles.index("Memory per rank") + 1
    assert "Classes" not in titles and "accuracy (%)" not in page and "accuracy pct" not in page
    layouts = read_table(page, "Layouts")
    assert [row[:4] for row in layouts[:3]] == [
        ["llm-1d", "nd", "dp8x1", "1"],
        ["llm-2d", "nd", "pp2.dp4", "2"],
        ["llm-3d", "nd", "pp2.dp2.tp2", "3"],
    ]
    assert [row[-3:] for row in layouts[2:4]] == [
        ["no", "-", "3D on 8 processes"],
        ["yes", "-", "4D on 8 processes"],
    ]
    bubbles = {row[0]: row[1:] for row in read_table(page, "Pipeline bubble")}
    assert list(bubbles) == FIVE[1:]
    micro = 64 // 32 // 2
    assert bubbles["llm-3d"] == ["2", "1f1b", str(micro), "9.0", f"{100 / (micro + 1):.1f}", "cpu"]
    sent = {row[0]: row[1:] for row in read_table(page, "Communication per axis")}
    assert list(sent) == FIVE
    assert sent["llm-1d"] == ["-", f"{8e6 / 2**20:.3f}", "-", "-", "-", f"{8e6 / 2**20:.3f}"]
    assert sent["llm-2d"][1] == "-" and sent["llm-5d"][4] == f"{3e6 / 2**20:.3f}"
    stages = read_table(page, "Memory per stage")
    assert [row[:3] for row in stages[:3]] == [
        ["llm-1d", "0", "8"],
        ["llm-2d", "0", "4"],
        ["llm-2d", "1", "4"],
    ]
    assert stages[0][-2] == "-"  # no device on a CPU
    assert "llm-3d: measured, measured: 9.0 % of the step" in page and "all-gather" in page
    assert "Validation perplexity" in page and page.count("</svg>") == page.count("<svg")


def test_a_comparison_of_images_has_no_layouts(tmp_path: Path) -> None:
    for name in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", name, name, hosts=["n"])
    page = write_page(load_runs(tmp_path / "demo"), tmp_path / "out")
    assert "<h2>Layouts</h2>" not in page and "perplexity" not in page.split("Where the numbers come from")[0]
    assert "<h2>Classes</h2>" in page and "Validation accuracy" in page


def test_the_terminal_speaks_of_tokens(runs: list[RunRecord]) -> None:
    runs[0].analysis["mean"]["bubble_pct"] = 0.0  # as the analysis says without a pipeline
    printed = print_table(compare(runs))
    bubbles = [line.split("│")[9].strip() for line in printed.splitlines() if line.startswith("│")]
    assert bubbles == ["-", "15.0", "9.0", "8.0", "12.0"]
    assert "useful tokens/s" in printed and "test perplexity" in printed and "bubble %" in printed
    assert "samples/s" not in printed and "acc" not in printed
    assert "nd pp2.dp2.tp2+sp.ep4" in printed


def test_the_table_file_holds_them_all(runs: list[RunRecord], tmp_path: Path) -> None:
    write_page(runs, tmp_path / "out")
    lines = list(csv.DictReader(StringIO((tmp_path / "out" / "comparison.csv").read_text())))
    assert lines[3]["layout"] == "pp2.dp2.tp2+sp" and lines[3]["test_accuracy_pct"] == ""
    assert json.loads(lines[3]["wire_bytes_per_axis"]) == LAYOUTS["llm-4d"].sent
    assert lines[3]["missing_dimensions"] == "" and lines[3]["degenerate"] == "False"


def test_on_gpus_the_fastest_and_smallest_layouts_are_named(tmp_path: Path) -> None:
    speeds = {"llm-1d": 100.0, "llm-2d": 120.0, "llm-3d": 90.0}
    for name, speed in speeds.items():
        build_text_run(tmp_path, name, LAYOUTS[name], device="cuda", samples_per_s=speed)
    report = compare(load_runs(tmp_path))
    assert report["fairness"]["verdict"] == "comparable"
    assert report["winners"]["samples_per_s"] == "llm-2d"
    goals = report["goals"]["groups"][0]["goals"]
    assert goals[0]["goal"] == "fastest" and goals[0]["run"] == "llm-2d"
    assert [point["run"] for point in report["pareto"][0]["points"]] != []


def test_two_layouts_of_the_same_size_are_no_repeats(tmp_path: Path) -> None:
    """3D and 4D differ on 8 processes in nothing but sequence parallelism."""
    for name, speed in {"llm-3d": 100.0, "llm-4d": 120.0}.items():
        build_text_run(tmp_path, name, LAYOUTS[name], device="cuda", samples_per_s=speed)
    report = compare(load_runs(tmp_path))
    assert report["winners"]["samples_per_s"] == "llm-4d"
    assert report["noise"]["variants"] == [["llm-3d"], ["llm-4d"]] and report["origin"]["repeats"] == 1
    assert not any("same layout" in remark for remark in report["remarks"])


def test_two_names_of_one_layout_are_repeats_and_that_is_said(tmp_path: Path) -> None:
    """Experts need sequence parallelism in three dimensions too."""
    build_text_run(tmp_path, "llm-3d", replace(LAYOUTS["llm-4d"], dimensions=3))
    build_text_run(tmp_path, "llm-4d", LAYOUTS["llm-4d"])
    report = compare(load_runs(tmp_path))
    assert report["noise"]["variants"] == [["llm-3d", "llm-4d"]]
    assert (
        "llm-3d and llm-4d have the same layout, pp2.dp2.tp2+sp: they are repeats of one thing"
        in report["remarks"]
    )


def test_runs_that_have_counted_no_collectives_show_no_bytes(tmp_path: Path) -> None:
    for name in ("llm-1d", "llm-3d"):
        build_text_run(tmp_path / "llm", name, replace(LAYOUTS[name], sent={}))
    page = write_page(load_runs(tmp_path / "llm"), tmp_path / "out")
    assert "<h2>Layouts</h2>" in page and "Communication per axis" not in page
