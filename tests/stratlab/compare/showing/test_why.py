"""What the page, the terminal and the spreadsheet say of the reasons."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import write_report
from tests.stratlab.compare.test_comparison import print_table
from tests.stratlab.example_run import build_run_dir


def test_the_page_says_why_right_after_the_verdict(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp", "zero2"):
        build_run_dir(tmp_path / "demo", strategy, strategy, device="cuda", hosts=["n"])
    runs = load_runs(tmp_path / "demo")
    report = compare(runs, memory_limit_gib=1.5)
    page = write_report(report, runs, tmp_path / "out").read_text()
    assert page.index("<h2>Verdict") < page.index("<h2>Why") < page.index("<h2>Speed")
    assert "fsdp is 2.5 ms (22 %) slower per step than ddp: 2.6 ms exposed all-gather" in page
    assert page.count("remedy: send less or nearer") == 2
    origin = "parts: GPU events; traced: 3 steps on 2 ranks; difference: medians of untraced steps."
    assert page.count(origin) == 1, "once for all pairs"
    assert "<title>fsdp − ddp, more communication: +2.74" in page
    assert "<title>fsdp − ddp, compute: -0.22" in page  # a part that goes the other way has its bar
    assert "exposed all-reduce: more communication" in page and "difference of the step times" in page
    assert "not explained by the traced steps" in page
    assert "fastest within 1.5 GiB per device" in page and "ddp does not fit (1.8 GiB)" in page
    assert "On the front, where nobody is both faster and smaller: zero2, ddp." in page
    printed = " ".join(print_table(report).split())
    assert "fsdp is 2.5 ms (22 %) slower per step than ddp: 2.6 ms exposed all-gather" in printed
    assert "fastest within 1.5 GiB per device: zero2" in printed


def test_the_banner_warns_of_runs_on_a_cpu_once_for_all_sentences(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp", "zero2"):
        build_run_dir(tmp_path / "demo", strategy, strategy, hosts=["n"])
    runs = load_runs(tmp_path / "demo")
    report = compare(runs)
    page = write_report(report, runs, tmp_path / "out").read_text()
    warning = "On a CPU (host operator time on gloo; says nothing about GPUs): "
    assert [pair["sentence"].startswith(warning) for pair in report["attribution"]["pairs"]] == [True, True]
    assert warning not in page and page.count('<span class="badge warn">CPU</span> ') == 2
    why = page.partition("<h2>Why</h2>")[2]
    assert "about GPUs" in page.partition("<nav")[0] and "about GPUs" not in why
    assert "No run is put on the front: times of a CPU are not ranked." in page and "remedy" not in page


def test_what_cannot_be_explained_is_said(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp", "single"):
        build_run_dir(tmp_path / "demo", strategy, strategy, hosts=["n"], analysis=strategy != "fsdp")
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert "fsdp against ddp: not explained, fsdp has no analysed traces." in page
    assert "<h3>Runs that are not comparable</h3>" in page
    assert (
        "Not comparable, no finding: they differ in world_size, processes_per_node, ranks on each node."
        in page
    )


def test_many_runs_stay_readable(tmp_path: Path) -> None:
    for i in range(11):
        build_run_dir(
            tmp_path / "demo", f"run{i:02}", "ddp", device="cuda", hosts=["n"], micro_batch_size=i + 1
        )
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert page.count("Runs 1 to 8 of 11.") == page.count("Runs 9 to 11 of 11.") == 3
    assert "Their parts" in page and page.count("− run00</td>") == 10  # a line per pair instead of a column


def test_the_table_of_a_spreadsheet_has_the_columns_of_a_comparison(tmp_path: Path) -> None:
    for name, strategy, seed in (("ddp", "ddp", 0), ("again", "ddp", 1), ("fsdp", "fsdp", 0)):
        build_run_dir(tmp_path / "demo", name, strategy, device="cuda", hosts=["n"], seed=seed)
    runs = load_runs(tmp_path / "demo")
    write_report(compare(runs), runs, tmp_path / "out")
    lines = {
        row["run"]: row for row in csv.DictReader(StringIO((tmp_path / "out/comparison.csv").read_text()))
    }
    assert {"tp", "pp", "bubble_pct", "straggler_pct", "h2d_gbps", "kernel_us_p50"} <= lines["ddp"].keys()
    row = lines["fsdp"]
    assert float(row["speedup_vs_baseline"]) == pytest.approx(0.819, abs=0.001) and row["baseline"] == "ddp"
    assert float(row["memory_fragmentation_pct"]) == pytest.approx(20.0)
    assert (row["torch"], row["step_times_from"], row["pp"]) == ("2.13.0", "metrics.jsonl", "1")
    assert row["warmup_steps"] == "6" and float(row["noise_ms"]) == 0.0
    assert row["bubble_pct"] == "" == row["scaling_efficiency_pct"], "unknown is not 0"
