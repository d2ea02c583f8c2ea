"""Which runs were tuned, as the record beside them and their own knobs say; what report and audit make of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.report_files import render_page, write_report
from stratlab.compare.run_sources import NOT_IN_MLFLOW, keep_tuning, load_runs, read_tuning
from stratlab.user_error import NothingThere, UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import build, difference, rows_of
from tests.stratlab.example_run import build_run_dir


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return build(tmp_path / "demo", ["ddp", "fsdp"])


def test_a_whole_run_is_complete(root: Path) -> None:
    runs = load_runs(root)
    assert [(run.name, run.status, run.missing, run.problems) for run in runs] == [
        ("ddp", "finished", [], []),
        ("fsdp", "finished", [], []),
    ]
    assert runs[0].mlflow_run_id == "id-ddp" and len(runs[0].series("train", "loss")) == 60
    write_report(compare(runs), runs, root / "report")
    (root / ".cache").mkdir()
    (root / "lost+found").mkdir()
    assert [run.name for run in load_runs(root)] == ["ddp", "fsdp", "lost+found"], "its own report is no run"
    assert [entry["folder"] for entry in compare(load_runs(root))["not_runs"]] == [str(root / "lost+found")]
    plain = build_run_dir(root / "plain", "ddp", "ddp", profile_steps=0, analysis=False)
    assert load_runs(plain.parent)[0].missing == [], "without a profile it needs no traces"


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "attempts.jsonl",
        "metrics.jsonl",
        "summary.json",
        "ranks/rank0.log",
        "traces/rank1_trace.json",
    ],
)
def test_a_missing_file_is_named_and_not_fatal(root: Path, tmp_path: Path, name: str) -> None:
    (root / "ddp" / name).unlink()
    runs = load_runs(root)
    report = compare(runs)
    rows = rows_of(report)
    assert rows["ddp"]["missing"] == [name] and not rows["ddp"]["complete"] and rows["fsdp"]["complete"]
    assert name in write_report(report, runs, tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", "{"), ("summary.json", "[1]"), ("evaluation.json", "\x00"), ("ranks/rank0.json", "")],
)
def test_a_broken_file_is_named_and_not_fatal(root: Path, tmp_path: Path, name: str, content: str) -> None:
    (root / "ddp" / name).write_text(content)
    runs = load_runs(root)
    assert len(runs[0].problems) == 1 and Path(name).name in runs[0].problems[0]
    report = compare(runs)
    assert report["fairness"]["verdict"] == ("comparable" if name == "evaluation.json" else "not comparable")
    write_report(report, runs, tmp_path / "out")


def test_lines_that_are_cut_or_made_again(root: Path) -> None:
    """A repeated step counts as the later attempt had it; one that is not finite is left out."""
    again = {"t": 9.0, "kind": "train", "attempt": 2}
    lines = [{"step": 7, "loss": 5.0}, {"step": 8}, {"step": 9, "loss": float("nan")}]
    with open(root / "ddp" / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(again | line) + "\n" for line in lines) + '{"kind": "train", "st')
    run = load_runs(root)[0]
    series = run.series("train", "loss")
    assert series[7] == 5.0 and series[8] < 5.0 and series[9] < 5.0 and list(series) == list(range(1, 61))
    assert len(run.problems) == 1


def test_a_run_that_died_before_its_configuration_is_a_failed_run(root: Path) -> None:
    shutil.rmtree(root / "ddp" / "ranks")
    for name in ("config.json", "metrics.jsonl", "summary.json", "evaluation.json"):
        (root / "ddp" / name).unlink()
    line = {"t": 1.0, "attempt": 1, "event": "ended", "exit_code": 2, "reason": "bad configuration"}
    (root / "ddp" / "attempts.jsonl").write_text(json.dumps(line) + "\n")
    (root / "fsdp" / "summary.json").unlink()  # ended well without it
    assert [run.status for run in load_runs(root)] == ["failed", "unfinished"]
    compare(load_runs(root))


@pytest.mark.parametrize(
    ("find", "code"),
    [
        (lambda root: root / "ddp", "SL-compare-one-run"),
        (lambda root: root.parent, "SL-compare-several"),
        (lambda root: root / "ddp" / "ranks", "SL-compare-no-run"),
    ],
)
def test_what_is_no_comparison_is_refused(root: Path, find: Callable[[Path], Path], code: str) -> None:
    with pytest.raises(UserError) as refused:
        load_runs(find(root))
    assert find_codes(refused.value) == [code]
    assert isinstance(refused.value, NothingThere) is (code == "SL-compare-no-run")


def test_a_folder_of_comparisons_names_the_commands_for_them(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "stratlab.machine.name_program"
    monkeypatch.setattr(name, lambda: ".venv/bin/stratlab")
    runs = tmp_path / "demo-results/runs"
    runs.mkdir(parents=True)
    shutil.move(root, runs / "demo")
    build_run_dir(runs / "my pets", "ddp", "ddp")
    (runs.parent / "mlflow/artifacts/1").mkdir(parents=True)
    for folder in (runs, runs.parent):
        with pytest.raises(UserError) as wrong:
            load_runs(folder)
        assert str(wrong.value).splitlines()[1:] == [
            f"  .venv/bin/stratlab compare {runs}/demo",
            f"  .venv/bin/stratlab compare '{runs}/my pets'",
        ]


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
