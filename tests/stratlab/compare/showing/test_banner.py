"""The banner says what the numbers can and cannot say, so that no section has to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.banner import build_banner, say_few_steps, say_unsteady
from stratlab.compare.showing.report_files import render_page
from stratlab.compare.showing.verdict import describe_work
from tests.stratlab.example_run import build_run_dir

ROW = {"status": "finished", "degenerate": False}


def build_page(root: Path, **changes: Any) -> tuple[str, str]:
    """Banner and sections of a comparison of two runs."""
    for strategy in ("ddp", "fsdp"):
        build_run_dir(root / "demo", strategy, strategy, hosts=["n"], **changes)
    runs = load_runs(root / "demo")
    head, _, sections = render_page(compare(runs), runs).partition("<nav")
    return head.partition('<div class="banner"')[2], sections


def test_on_a_cpu_it_says_what_holds_and_what_does_not(tmp_path: Path) -> None:
    banner, sections = build_page(tmp_path)
    assert "Example CPU, 4 cores (cpu), backend gloo, 2 processes on 1 node, 60 steps of which 50" in banner
    assert "times say nothing about GPUs. What is counted holds on any hardware" in banner
    assert "no confidence interval. Differences below 2 % count as none." in banner
    assert "Traces without GPU events show the host&#39;s operators" in banner
    for caveat in ("about GPUs", "confidence", "One repeat", "GPU events", "no band"):
        assert caveat not in sections, caveat


def test_on_gpus_it_does_not_speak_of_cpus(tmp_path: Path) -> None:
    banner, _ = build_page(tmp_path, device="cuda")
    assert "NVIDIA H200 (cuda), backend nccl" in banner
    assert "CPU" not in banner and "GPU events" not in banner and "loud" not in banner


def test_uneven_steps_are_said_loudly() -> None:
    even = {**ROW, "run": "ddp", "step_time_ms_p50": 10.0, "step_time_ms_p95": 29.0}
    assert say_unsteady([even, {**even, "step_time_ms_p95": None}]) == ""
    said = say_unsteady([even, {**even, "run": "fsdp", "step_time_ms_p95": 101.0}])
    assert "(fsdp 10 times)" in said and "ddp" not in said and "again on a quiet machine" in said
    assert say_unsteady([{**even, "step_time_ms_p95": 101.0, "status": "failed"}]) == "", "it is not compared"


def test_what_was_trained_stands_at_the_head(tmp_path: Path) -> None:
    build_page(tmp_path)
    report = compare(load_runs(tmp_path / "demo"))
    told = describe_work(report)
    row = report["runs"][0]
    assert told.startswith(f"{row['model']} on {row['dataset']}, {row['global_batch_size']} samples a step")
    assert told in render_page(report, []).partition("<nav")[0]
    other = {**row, "model": "cnn", "precision": None}
    assert describe_work({"runs": [row, other]}).startswith(f"{row['model']} / cnn on ")
    assert describe_work({"runs": [{**row, "model": None}]}) == ""


def test_few_timed_steps_are_said_first_and_loudly(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, hosts=["n"], device="cuda")
    report = compare(load_runs(tmp_path / "demo"))
    assert not isinstance(build_banner(report)[0], Markup)
    for row in report["runs"]:
        row["measured_steps"] = 1
    first = build_banner(report)[0]
    assert isinstance(first, Markup)
    assert first.startswith('<strong class="loud">Only 1 step of each run is timed: ')


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"a": 9, "b": 9}, "Only 9 steps of each run are timed"),
        ({"a": 1}, "Only 1 step of the run is timed"),
        ({"a": 9, "b": 10, "c": 3}, "Only a few steps (a 9, c 3) are timed"),
        ({"a": 10, "b": None}, ""),
        ({"a": 0}, ""),
    ],
)
def test_what_few_steps_are(counts: dict[str, int | None], said: str) -> None:
    found = say_few_steps([ROW | {"run": run, "measured_steps": n} for run, n in counts.items()])
    assert found.partition(":")[0] == said
