"""Experiments of which there are only traces, compared with each other and beside runs of this lab."""

from pathlib import Path

import pytest

from stratlab.analysis import run_analysis as analyze
from stratlab.analysis.foreign_traces import analyze_foreign
from stratlab.analysis.hta_bridge import HtaRun
from stratlab.compare.fairness import UNSHOWN
from stratlab.compare.run_sources import load_runs
from tests.codes import find_codes
from tests.stratlab.compare.building import judge, rows_of
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import TraceWriter, add_gpu_step


def build(rank, device="NVIDIA A100"):
    trace = TraceWriter(rank)
    trace.head["deviceProperties"] = [{"id": 0, "name": device}]
    for i in range(3):
        add_gpu_step(trace, 10 + i, 5000.5 + 1000 * i)
    return trace


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """`fast` and `slow` on one device, two ranks each; not yet compared."""
    monkeypatch.setattr(analyze, "run_hta", lambda *_, **__: HtaRun([], [], ""))
    slow = [build(rank) for rank in (0, 1)]
    for event in (event for trace in slow for event in trace.events):  # twice as slow in everything
        event["ts"], event["dur"] = 2 * event["ts"], 2 * event["dur"]
    add(tmp_path / "out", "slow", *slow)
    add(tmp_path / "out", "fast", build(0), build(1))
    return tmp_path / "out"


def add(folder, name, *traces):
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


def test_an_experiment_that_is_damaged_or_alone(folder):
    path = folder / "slow" / "foreign.json"
    path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 100000'))
    report = judge(folder)
    assert rows_of(report)["slow"]["world_size"] is None
    assert report["fairness"]["verdict"] == UNSHOWN, "not known is not seen to differ"
    assert any("100000" in remark for remark in report["remarks"])
    (folder / "slow" / "analysis" / "report.json").unlink()
    assert [Path(entry["folder"]).name for entry in judge(folder)["not_runs"]] == ["slow"]
    assert find_codes(raised(load_runs, folder / "slow")) == ["SL-compare-one-run"]
