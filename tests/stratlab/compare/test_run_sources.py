"""Which runs were tuned, as the record beside them and their own knobs say; what report and audit make of it.
Rows, origin and remarks of a report, and what is no comparison at all."""

import json
import shutil
from pathlib import Path

import pytest

from stratlab import NothingThere
from stratlab.compare.comparison import compare
from stratlab.compare.report_files import render_page, write_report
from stratlab.compare.run_sources import load_comparisons, load_runs, read_tuning
from stratlab.run_directory.record import RunRecord
from tests.codes import find_codes
from tests.stratlab.compare.building import build, rows_of
from tests.stratlab.compare.scenarios import tune
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.raised import raised


@pytest.fixture
def root(tmp_path):
    return build(tmp_path / "demo", ["ddp", "fsdp"])


def test_a_whole_run_is_complete(root):
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
    "name", ["config.json", "metrics.jsonl", "ranks/rank0.log", "traces/rank1_trace.json"]
)
def test_a_missing_file_is_named_and_not_fatal(root, tmp_path, name):
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
def test_a_broken_file_is_named_and_not_fatal(root, tmp_path, name, content):
    (root / "ddp" / name).write_text(content)
    runs = load_runs(root)
    assert len(runs[0].problems) == 1 and Path(name).name in runs[0].problems[0]
    report = compare(runs)
    assert report["fairness"]["verdict"] == ("comparable" if name == "evaluation.json" else "not comparable")
    write_report(report, runs, tmp_path / "out")


def test_lines_that_are_cut_or_made_again(root):
    again = {"t": 9.0, "kind": "train", "attempt": 2}
    lines = [{"step": 7, "loss": 5.0}, {"step": 8}, {"step": 9, "loss": float("nan")}]
    with open(root / "ddp" / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(again | line) + "\n" for line in lines) + '{"kind": "train", "st')
    run = load_runs(root)[0]
    series = run.series("train", "loss")
    assert series[7] == 5.0 and series[8] < 5.0 and series[9] < 5.0 and list(series) == list(range(1, 61))
    assert len(run.problems) == 1


def test_a_run_that_died_before_its_configuration_is_a_failed_run(root):
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
def test_what_is_no_comparison_is_refused(root, find, code):
    refused = raised(load_runs, find(root))
    assert find_codes(refused) == [code]
    assert isinstance(refused, NothingThere) is (code == "SL-compare-no-run")


def test_a_tuning_is_said_with_what_was_not_tried(root):
    report = tune(root, {"seed": 0}, {"seed": 0})
    assert report["fairness"]["same"]["tuning"] == "tuned"
    assert all(word in str(report["remarks"]) for word in ("seed=0", "+10.0 %", "static_graph=true"))
    page = render_page(report, load_runs(root))
    assert "OOM!" in page and ">Tuning<" in page and "demo-tuning" in page
    (root / "tuning.json").write_text(json.dumps({"metric": {}}))
    assert find_codes(raised(read_tuning, root)) == ["SL-tuning-file"]
    (root / "tuning.json").unlink()
    report = compare(load_runs(root), tuning=read_tuning(root))
    assert report["tuning"] is None and report["fairness"]["same"]["tuning"] == "not tuned"


def test_nothing_to_compare_is_an_error(tmp_path):
    strange = RunRecord("ddp", tmp_path, "not a run", "has no artifacts")
    for runs in ([], [strange]):
        refused = raised(compare, runs)
        assert find_codes(refused) == ["SL-nothing-to-compare"]
        assert all(run.ending in str(refused) for run in runs)


def test_names_that_several_folders_have_are_told_apart(tmp_path):
    for folder, runs in (("a", ["ddp"]), ("x/a", ["ddp"]), ("b", ["ddp", "fsdp"])):
        build(tmp_path / folder, runs)

    def name(*folders):
        return [run.name for run in load_comparisons([tmp_path / folder for folder in folders])]

    assert name("a", "b") == ["a/ddp", "b/ddp", "fsdp"] and name("b", "x/a") == ["b/ddp", "fsdp", "a/ddp"]
    assert len(set(name("a", "x/a"))) == 2 and find_codes(raised(name, "a", "b/../a")) == ["SL-compare-twice"]
