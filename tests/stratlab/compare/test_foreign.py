"""Experiments of which there are only traces, compared with each other and beside runs of this lab."""

from pathlib import Path

import pytest

from stratlab import UserError
from stratlab.analysis import run_analysis as analyze
from stratlab.analysis.foreign_traces import analyze_foreign
from stratlab.analysis.hta_bridge import HtaRun
from stratlab.compare.comparison import compare
from stratlab.compare.fairness import UNSHOWN
from stratlab.compare.report_files import render_csv, render_page
from stratlab.compare.run_sources import load_runs
from stratlab.compare.summary_view import build_markdown
from stratlab.compare.terminal_view import list_answers
from tests.codes import find_codes
from tests.stratlab.compare.building import edit, judge, read_columns, rows_of
from tests.stratlab.simulated.small import TraceWriter, add_gpu_step, build_cpu_trace, build_gpu_trace


def build(rank: int, device: str = "NVIDIA A100") -> TraceWriter:
    trace = TraceWriter(rank)
    trace.head["deviceProperties"] = [{"id": 0, "name": device}]
    for i in range(3):
        add_gpu_step(trace, 10 + i, 5000.5 + 1000 * i)
    return trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`fast` and `slow` on one device, two ranks each; not yet compared."""
    monkeypatch.setattr(analyze, "run_hta", lambda *_, **__: HtaRun([], [], ""))
    slow = [build(rank) for rank in (0, 1)]
    for event in (event for trace in slow for event in trace.events):  # twice as slow in everything
        event["ts"], event["dur"] = 2 * event["ts"], 2 * event["dur"]
    add(tmp_path / "out", "slow", *slow)
    add(tmp_path / "out", "fast", build(0), build(1))
    return tmp_path / "out"


def add(folder: Path, name: str, *traces: TraceWriter) -> None:
    for rank, trace in enumerate(traces):
        trace.write(folder.parent / "in" / name / f"rank{rank}.json")
    analyze_foreign(folder.parent / "in", folder)


def test_what_is_not_known_is_said_to_be_so(folder):
    report = judge(folder)
    fairness = report["fairness"]
    assert fairness["verdict"] == UNSHOWN and fairness["groups"] == [["fast"], ["slow"]]
    assert fairness["same"] == {"world_size": 2, "device_name": "NVIDIA A100", "backend": "nccl"}
    (entry,) = fairness["differences"]
    assert entry["field"] == "settings" and set(entry["values"].values()) == {"unknown"} and entry["matters"]
    assert set(report["winners"].values()) == {None} and report["loss_agreement"]["pairs"] == []
    for name in ("samples_per_s", "train_loss", "peak_memory_gib", "model", "strategy", "step_time_ms_p50"):
        assert {row[name] for row in report["runs"]} == {None}, name
    (pair,) = report["attribution"]["pairs"]
    assert (pair["run"], pair["baseline"], pair["run_ms"], pair["baseline_ms"]) == ("slow", "fast", 2.0, 1.0)
    parts = {row["cause"]: pytest.approx(row["ms"]) for row in pair["parts"] if row["ms"]}
    assert parts == {
        "compute": 0.65,
        "copies": 0.02,
        "idle": 0.03,
        **dict.fromkeys(("more_communication", "host", "data"), 0.1),
    }
    assert not (pair["comparable"] or pair["differing"] or pair["settings_known"] or pair["remedy"])


def test_traces_of_a_cpu_and_without_steps_are_not_held_against_others(folder):
    trace = build_gpu_trace(0)
    trace.events = [event for event in trace.events if event["cat"] != "user_annotation"]
    add(folder, "cpu", build_cpu_trace(0), build_cpu_trace(1))
    add(folder, "unlabelled", trace)
    found = judge(folder)["attribution"]
    assert [(pair["run"], pair["baseline"]) for pair in found["pairs"]] == [("slow", "fast")]
    assert ("unlabelled", None) in [(entry["run"], entry["baseline"]) for entry in found["not_attributed"]]
    asked = judge(folder, asked={"baseline": "cpu"})["attribution"]
    assert {entry["run"] for entry in asked["not_attributed"]} >= {"fast", "slow"} and asked["pairs"] == []
    with pytest.raises(UserError) as refused:
        judge(folder, asked={"baseline": "unlabelled"})
    assert find_codes(refused.value) == ["SL-baseline-unknown"]


def test_runs_of_this_lab_beside_them_are_judged_among_themselves(folder):
    report = judge(folder, ["ddp", "fsdp"])
    alone = compare([run for run in load_runs(folder) if not run.is_foreign])
    assert report["fairness"]["groups"] == [["ddp", "fsdp"], ["fast"], ["slow"]]
    (group,) = report["group_winners"]
    assert group["runs"] == ["ddp", "fsdp"] and group["winners"] == alone["winners"]
    pairs = {(pair["run"], pair["baseline"]): pair for pair in report["attribution"]["pairs"]}
    (mine,) = alone["attribution"]["pairs"]
    assert pairs.keys() == {("fsdp", "ddp"), ("slow", "fast")} and pairs["fsdp", "ddp"] == mine
    by_rule = {
        "warmup": {"steps": 5, "first_step": 6, "method": "", "settled": True},
        "step_time_ms_p50": 9.0,
    }
    edit(folder / "ddp" / "summary.json", lambda summary: summary.update(by_rule))
    report = judge(folder, asked={"baseline": "ddp"})
    asked = report["attribution"]["pairs"]
    traced = {pair["run"]: pair for pair in asked if not pair["settings_known"]}
    assert {run: pair["run_ms"] for run, pair in traced.items()} == {"fast": 1.0, "slow": 2.0}
    ddp = rows_of(report)["ddp"]
    assert {pair["baseline_ms"] for pair in traced.values()} == {ddp["step_ms"]} != {ddp["step_time_ms_p50"]}


def test_every_page_shows_them(folder):
    headers = read_columns(judge(folder))
    assert "recorded step ms" in headers and "samples/s" not in headers
    report = judge(folder, ["ddp"])
    runs = load_runs(folder)
    page, summary = render_page(report, runs), build_markdown(report)
    assert not any("None" in text for text in (page, summary, str(list_answers(report))))
    assert f'<span class="badge warn">{UNSHOWN}</span>' in page and "Fast" not in page
    assert {"recorded step ms", "samples/s"} <= read_columns(report).keys()
    lines = render_csv(report).splitlines()
    assert len(lines) == len(runs) + 1 and any(line.startswith("slow,traces only,") for line in lines)


def test_an_experiment_that_is_damaged_or_alone(folder):
    path = folder / "slow" / "foreign.json"
    path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 100000'))
    report = judge(folder)
    assert rows_of(report)["slow"]["world_size"] is None
    assert report["fairness"]["verdict"] == UNSHOWN, "not known is not seen to differ"
    assert any("100000" in remark for remark in report["remarks"])
    (folder / "slow" / "analysis" / "report.json").unlink()
    assert [Path(entry["folder"]).name for entry in judge(folder)["not_runs"]] == ["slow"]
    with pytest.raises(UserError) as refused:
        load_runs(folder / "slow")
    assert find_codes(refused.value) == ["SL-compare-one-run"]
