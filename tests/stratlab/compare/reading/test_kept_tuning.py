"""Which runs were tuned, as the record beside them and their own knobs say; what report and audit make of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.reading.kept_tuning import NOT_IN_MLFLOW, keep_tuning, read_tuning
from stratlab.compare.showing.report_files import render_page
from tests.stratlab.example_run import build_run_dir


def candidate(
    knobs: dict[str, Any], value: float | None, lead: float | None, why: str = ""
) -> dict[str, Any]:
    return {
        "knobs": knobs,
        "runs": ["r"],
        "values": [value] if value else [],
        "value": value,
        "why": why,
        "lead_pct": lead,
        "noise_pct": 2.0,
        "measured_noise": False,
    }


def record(ddp_chosen: dict[str, Any], fsdp_why_not: str = "") -> dict[str, Any]:
    tried = [
        candidate({}, 100.0, 0.0),
        candidate({"seed": 0}, 110.0, 10.0),
        candidate({"a": 9}, None, None, "OOM!"),
    ]
    ddp = {"strategy": "ddp", "point": {"strategy": "ddp"}, "runs": ["ddp"], "tried": tried}
    fsdp = {"strategy": "fsdp", "point": {"strategy": "fsdp"}, "runs": ["fsdp"], "tried": [], "chosen": {}}
    return {
        "metric": {"name": "throughput", "key": "samples_per_s", "unit": "samples per s", "highest": True},
        "tuning": "demo-tuning",
        "origin": dict.fromkeys(("hardware", "backend", "world_size", "nodes", "measured_steps"), "x")
        | {"device": "cpu"},
        "steps": 30,
        "repeats": 1,
        "candidates": 3,
        "searches": [{**ddp, "chosen": ddp_chosen, "why_not": ""}, {**fsdp, "why_not": fsdp_why_not}],
    }


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, hosts=["node-1"])
    return tmp_path / "demo"


def judge(demo: Path, tuning: dict[str, Any]) -> dict[str, Any]:
    keep_tuning(demo, tuning)
    return compare(load_runs(demo), tuning=read_tuning(demo))


def find(report: dict[str, Any]) -> dict[str, str]:
    (entry,) = [each for each in report["fairness"]["differences"] if each["field"] == "tuning"]
    assert entry["matters"] and report["fairness"]["verdict"] == "not comparable"
    return dict(entry["values"])


def test_tuned_against_tuned_is_comparable_and_is_said(demo: Path) -> None:
    seed = json.loads((demo / "ddp" / "config.json").read_text())["config"]["seed"]
    report = judge(demo, record({"seed": seed}))
    assert report["fairness"]["verdict"] == "comparable" and report["fairness"]["same"]["tuning"] == "tuned"
    said = "\n".join(report["remarks"])
    assert "tuned by throughput first: ddp seed=0 of 3 candidates, +10.0 %" in said
    assert "fsdp has no knob" in said and "choose nothing for GPUs" in said
    page = render_page(report, load_runs(demo))
    assert "OOM!" in page and ">Tuning<" in page and "demo-tuning" in page


def test_tuned_against_untuned_is_flagged(demo: Path) -> None:
    tuning = record({}, "no knob was given")
    tuning["searches"][0]["tried"][1]["knobs"] = {"seed": 77}  # another one than that of the run
    report = judge(demo, tuning)
    assert find(report) == {"ddp": "tuned", "fsdp": "not tuned: no knob was given"}
    assert "not tuned: fsdp, no knob was given" in report["remarks"]


def test_a_run_with_other_knobs_than_were_chosen_is_not_as_tuned(demo: Path) -> None:
    tuning = record({"seed": 0})
    tuning["searches"][0]["chosen"] = tuning["searches"][0]["tried"][1]["knobs"] = {"seed": 77}
    assert find(judge(demo, tuning))["ddp"].startswith("not as tuned: seed is ")


def test_a_knob_that_was_turned_down_and_is_there_all_the_same_is_not_as_tuned(demo: Path) -> None:
    seed = json.loads((demo / "ddp" / "config.json").read_text())["config"]["seed"]
    tuning = record({})
    tuning["searches"][0]["tried"][1]["knobs"] = {"seed": seed}
    assert find(judge(demo, tuning))["ddp"] == f"not as tuned: seed is {seed}, which was tried and not chosen"


def test_what_was_not_tried_is_said(demo: Path) -> None:
    tuning = record({})
    tuning["searches"][0]["not_tried"] = [{"static_graph": True}]
    assert "not tried, for want of candidates: static_graph=true" in "\n".join(judge(demo, tuning)["remarks"])


def test_runs_from_mlflow_do_not_pass_for_untuned(demo: Path) -> None:
    runs = [dataclasses.replace(run, tuning=NOT_IN_MLFLOW) for run in load_runs(demo)]
    report = compare(runs)
    assert report["fairness"]["same"]["tuning"] == NOT_IN_MLFLOW
    assert any("tuned the strategies is not known" in remark for remark in report["remarks"])


def test_without_a_record_nothing_is_said_and_a_wrong_one_is_told(demo: Path) -> None:
    report = compare(load_runs(demo), tuning=read_tuning(demo))
    assert report["tuning"] is None and report["fairness"]["same"]["tuning"] == "not tuned"
    assert ">Tuning<" not in render_page(report, load_runs(demo))
    (demo / "tuning.json").write_text('{"metric": {}}')
    with pytest.raises(ValueError, match="not the record of a tuning"):
        read_tuning(demo)
