"""Experiments of which there are only traces, compared with each other and beside runs of this lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis import analyze
from stratlab.analysis.foreign_traces import analyze_foreign
from stratlab.analysis.hta.bridge import HtaRun
from stratlab.compare.comparison import compare
from stratlab.compare.judging.fairness import UNSHOWN
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import render_csv, render_page
from stratlab.compare.showing.summary_page import build_markdown
from stratlab.compare.showing.terminal_table import terminal_table
from stratlab.user_error import UserError
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.simulated.small import TraceWriter, add_gpu_step, build_cpu_trace, build_gpu_trace


def build(rank: int, comm_start: float = 600, device: str = "NVIDIA A100", length: int = 1) -> TraceWriter:
    trace = TraceWriter(rank)
    trace.head["deviceProperties"] = [{"id": 0, "name": device}]
    for i in range(3):
        add_gpu_step(trace, 10 + i, 5000.5 + 1000 * length * i, comm_start=comm_start)
    return trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`fast` and `slow` on one device, two ranks each; not yet compared."""
    monkeypatch.setattr(analyze, "run_hta", lambda *_, **__: HtaRun([], [], ""))
    for rank in (0, 1):
        build(rank).write(tmp_path / "in" / "fast" / f"rank{rank}.json")
        slow = build(rank)
        for event in slow.events:  # twice as slow in everything
            event["ts"], event["dur"] = 2 * event["ts"], 2 * event["dur"]
        slow.write(tmp_path / "in" / "slow" / f"rank{rank}.json")
    analyze_foreign(tmp_path / "in", tmp_path / "out")
    return tmp_path / "out"


def add(folder: Path, name: str, *traces: TraceWriter) -> None:
    for rank, trace in enumerate(traces):
        trace.write(folder.parent / "more" / name / f"rank{rank}.json")
    analyze_foreign(folder.parent / "more", folder)


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["run"]: row for row in report["runs"]}


def test_what_is_not_known_is_said_to_be_so(folder: Path) -> None:
    report = compare(load_runs(folder))
    fairness = report["fairness"]
    assert fairness["verdict"] == UNSHOWN
    assert fairness["reason"].startswith("of fast, slow there are only traces")
    assert fairness["reason"].endswith("that the settings are equal cannot be shown")
    assert fairness["same"] == {"world_size": 2, "device_name": "NVIDIA A100", "backend": "nccl"}
    (entry,) = fairness["differences"]
    assert entry["field"] == "settings" and set(entry["values"].values()) == {"unknown"} and entry["matters"]
    assert set(report["winners"].values()) == {None} and fairness["groups"] == [["fast"], ["slow"]]
    assert report["comparison"] == "out" and report["loss_agreement"]["pairs"] == []
    for name in ("samples_per_s", "train_loss", "peak_memory_gib", "model", "strategy", "step_time_ms_p50"):
        assert {row[name] for row in report["runs"]} == {None}, name
    assert {row["status"] for row in report["runs"]} == {"traces only"}
    assert any(remark.startswith("fast, slow: traces of another program") for remark in report["remarks"])
    assert not any("repeat" in remark or "not complete" in remark for remark in report["remarks"])


def test_the_difference_is_that_of_the_recorded_steps(folder: Path) -> None:
    (pair,) = compare(load_runs(folder))["attribution"]["pairs"]
    assert (pair["run"], pair["baseline"], pair["run_ms"], pair["baseline_ms"]) == ("slow", "fast", 2.0, 1.0)
    assert {row["cause"]: pytest.approx(row["ms"]) for row in pair["parts"] if row["ms"]} == {
        "compute": 0.65,
        "more_communication": 0.1,
        "copies": 0.02,
        "host": 0.1,
        "data": 0.1,
        "idle": 0.03,
    }
    assert not pair["comparable"] and pair["differing"] == [] and not pair["settings_known"]
    assert pair["origin"].endswith("difference: means of the traced steps") and not pair["remedy"]
    assert pair["sentence"].startswith(
        "Whether they are comparable is not known, for traces do not tell the settings: no finding. "
        "slow is 1.0 ms (100 %) slower per step than fast: 0.65 ms compute"
    )


def test_what_traces_tell_may_forbid_to_compare(folder: Path) -> None:
    add(folder, "other", build(0, device="NVIDIA H100"), build(1, device="NVIDIA H100"))
    report = compare(load_runs(folder))
    assert report["fairness"]["verdict"] == "not comparable"
    assert report["fairness"]["reason"].startswith(
        "the runs differ in device_name; of fast, other, slow there are only"
    )
    by_run = {pair["run"]: pair for pair in report["attribution"]["pairs"]}
    assert by_run["other"]["differing"] == ["device_name"] and by_run["slow"]["differing"] == []
    assert by_run["other"]["sentence"].startswith("Not comparable, no finding: they differ in device_name. ")


def test_traces_of_a_cpu_and_of_a_gpu_are_not_held_against_each_other(folder: Path) -> None:
    add(folder, "cpu", build_cpu_trace(0), build_cpu_trace(1))
    report = compare(load_runs(folder))
    assert [(pair["run"], pair["baseline"]) for pair in report["attribution"]["pairs"]] == [("slow", "fast")]
    asked = compare(load_runs(folder), baseline="cpu")["attribution"]
    assert {entry["why"] for entry in asked["not_attributed"]} == {
        "fast has gpu traces, cpu has cpu traces",
        "slow has gpu traces, cpu has cpu traces",
    }


def test_a_recording_without_steps_has_no_step(folder: Path) -> None:
    trace = build_gpu_trace(0)
    trace.events = [event for event in trace.events if event["cat"] != "user_annotation"]
    add(folder, "unlabelled", trace)
    report = compare(load_runs(folder))
    assert report["attribution"]["not_attributed"] == [
        {"run": "unlabelled", "baseline": None, "why": "its traces have no labels of steps"}
    ]
    with pytest.raises(UserError, match="--baseline unlabelled: expected a finished run"):
        compare(load_runs(folder), baseline="unlabelled")


def test_runs_of_this_lab_beside_them_are_judged_among_themselves(folder: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(folder, strategy, strategy, device="cuda")
    alone = compare([run for run in load_runs(folder) if not run.is_foreign])
    report = compare(load_runs(folder))
    assert alone["fairness"]["verdict"] == "comparable" and report["fairness"]["verdict"] != "comparable"
    assert report["fairness"]["groups"] == [["ddp", "fsdp"], ["fast"], ["slow"]]
    (group,) = report["group_winners"]
    assert group["runs"] == ["ddp", "fsdp"] and group["winners"] == alone["winners"]
    pairs = {(pair["run"], pair["baseline"]): pair for pair in report["attribution"]["pairs"]}
    (mine,) = alone["attribution"]["pairs"]
    assert pairs.keys() == {(mine["run"], mine["baseline"]), ("slow", "fast")}
    assert pairs[mine["run"], mine["baseline"]] == mine
    asked = compare(load_runs(folder), baseline="ddp")["attribution"]["pairs"]
    traced = {pair["run"]: pair["run_ms"] for pair in asked if not pair["settings_known"]}
    assert traced == {"fast": 1.0, "slow": 2.0}
    ddp = rows(report)["ddp"]
    recorded = {pair["baseline_ms"] for pair in asked if not pair["settings_known"]}
    assert recorded == {ddp["step_ms"]} != {ddp["step_time_ms_p50"]}


@pytest.mark.parametrize("with_runs", (False, True))
def test_every_page_shows_them(folder: Path, with_runs: bool) -> None:
    if with_runs:
        build_run_dir(folder, "ddp", "ddp", device="cuda")
    runs = load_runs(folder)
    report = compare(runs)
    page, summary, table = render_page(report, runs), build_markdown(report), terminal_table(report)
    for text in (page, summary, str(table.caption)):
        assert "cannot be shown" in text and "None" not in text
    assert '<span class="badge bad">not comparable</span> Whether' not in page
    assert f'<span class="badge warn">{UNSHOWN}</span> Whether they are comparable is not known' in page
    assert "<h3>Runs that are not shown to be comparable</h3>" in page
    assert "fast, slow: traces of" in page and "Fast" not in page
    headers = [str(column.header) for column in table.columns]
    assert "recorded step ms" in headers and ("samples/s" in headers) == with_runs
    assert ("Do they compute the same?" in page) == with_runs
    lines = render_csv(report).splitlines()
    assert len(lines) == len(runs) + 1 and any(line.startswith("slow,traces only,") for line in lines)


def test_an_experiment_without_its_analysis_is_left_out_by_name(folder: Path) -> None:
    (folder / "slow" / "analysis" / "report.json").unlink()
    (entry,) = compare(load_runs(folder))["not_runs"]
    assert entry["why"] == "holds traces of another program without their analysis"


def test_one_experiment_is_no_comparison(folder: Path) -> None:
    with pytest.raises(UserError, match="this is one run"):
        load_runs(folder / "slow")
    report = compare([run for run in load_runs(folder) if run.name == "slow"])
    assert report["fairness"]["reason"].startswith("1 finished run; a comparison needs two")


def test_damage_to_what_is_known_is_named(folder: Path) -> None:
    path = folder / "slow" / "foreign.json"
    path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 100000'))
    report = compare(load_runs(folder))
    assert rows(report)["slow"]["world_size"] is None
    assert report["fairness"]["verdict"] == UNSHOWN  # not known is not seen to differ
    assert "slow: foreign.json: world_size 100000 is left out" in report["remarks"]
