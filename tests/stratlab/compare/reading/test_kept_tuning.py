"""Which runs were tuned, as the record beside them and their own knobs say; what report and audit make of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.report_files import render_page
from stratlab.compare.run_sources import NOT_IN_MLFLOW, keep_tuning, load_runs, read_tuning
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import build, difference

SEED = 0  # of the example runs; played here as a knob


def candidate(knobs: dict[str, Any], value: float | None, lead: float | None) -> dict[str, Any]:
    noise = {"noise_pct": 2.0, "measured_noise": False}
    tried = {"knobs": knobs, "runs": ["r"], "values": [value] if value else [], "value": value}
    return tried | noise | {"why": "" if value else "OOM!", "lead_pct": lead}


def record(tried: dict[str, Any], chosen: dict[str, Any], fsdp_why_not: str = "") -> dict[str, Any]:
    """Of ddp `tried` besides its defaults and one that ran out of memory; fsdp has no knob."""
    candidates = [candidate({}, 100.0, 0.0), candidate(tried, 110.0, 10.0), candidate({"a": 9}, None, None)]
    ddp = {"strategy": "ddp", "point": {"strategy": "ddp"}, "runs": ["ddp"], "tried": candidates}
    fsdp = {"strategy": "fsdp", "point": {"strategy": "fsdp"}, "runs": ["fsdp"], "tried": [], "chosen": {}}
    origin = dict.fromkeys(("hardware", "backend", "world_size", "nodes", "measured_steps"), "x")
    return {
        "metric": {"name": "throughput", "key": "samples_per_s", "unit": "samples per s", "highest": True},
        "tuning": "demo-tuning",
        "origin": origin | {"device": "cpu"},
        "steps": 30,
        "repeats": 1,
        "candidates": 3,
        "searches": [
            {**ddp, "chosen": chosen, "why_not": "", "not_tried": [{"static_graph": True}]},
            {**fsdp, "why_not": fsdp_why_not},
        ],
    }


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    return build(tmp_path / "demo", ["ddp", "fsdp"])


def judge(demo: Path, tuning: dict[str, Any]) -> dict[str, Any]:
    keep_tuning(demo, tuning)
    return compare(load_runs(demo), tuning=read_tuning(demo))


def test_tuned_against_tuned_is_comparable_and_is_said(demo: Path) -> None:
    report = judge(demo, record({"seed": SEED}, {"seed": SEED}))
    assert report["fairness"]["verdict"] == "comparable" and report["fairness"]["same"]["tuning"] == "tuned"
    said = "\n".join(report["remarks"])
    assert "seed=0" in said and "+10.0 %" in said and "static_graph=true" in said, "what was not tried, too"
    page = render_page(report, load_runs(demo))
    assert "OOM!" in page and ">Tuning<" in page and "demo-tuning" in page


def test_tuned_against_untuned_is_flagged(demo: Path) -> None:
    report = judge(demo, record({"seed": 77}, {}, "no knob was given"))
    entry = difference(report, "tuning")
    assert entry["matters"] and report["fairness"]["verdict"] == "not comparable"
    assert entry["values"]["ddp"] == "tuned" and "no knob was given" in entry["values"]["fsdp"]


@pytest.mark.parametrize("chosen", [{"seed": 77}, {}], ids=["other knobs", "one that was turned down"])
def test_a_run_with_other_knobs_than_were_chosen_is_not_as_tuned(demo: Path, chosen: dict[str, Any]) -> None:
    entry = difference(judge(demo, record(chosen or {"seed": SEED}, chosen)), "tuning")
    assert entry["matters"] and entry["values"]["ddp"] != "tuned" and "seed" in entry["values"]["ddp"]


def test_without_a_record_nothing_is_said_and_mlflow_does_not_know(demo: Path) -> None:
    report = compare(load_runs(demo), tuning=read_tuning(demo))
    assert report["tuning"] is None and report["fairness"]["same"]["tuning"] == "not tuned"
    assert ">Tuning<" not in render_page(report, load_runs(demo))
    runs = [dataclasses.replace(run, tuning=NOT_IN_MLFLOW) for run in load_runs(demo)]
    report = compare(runs)
    assert report["fairness"]["same"]["tuning"] == NOT_IN_MLFLOW
    assert any(NOT_IN_MLFLOW in remark for remark in report["remarks"])
    (demo / "tuning.json").write_text(json.dumps({"metric": {}}))
    with pytest.raises(UserError) as refused:
        read_tuning(demo)
    assert find_codes(refused.value) == ["SL-tuning-file"]
