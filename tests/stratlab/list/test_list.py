"""Which runs there are, in a folder and on a cluster. A process here plays the pod."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from stratlab import cli
from stratlab.list.run_list import ListedRun, build_run, list_runs
from stratlab.run_directory.foreign import write_foreign
from stratlab.user_error import UserError
from tests.stratlab.cluster.lab import Lab
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.watch.objects import RUNS
from tests.stratlab.watch.objects import build_run as build_resource


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    build_run_dir(folder / "demo", "ddp", "ddp")
    build_run_dir(folder / "demo", "fsdp", "fsdp", status="failed")
    build_run_dir(folder / "other", "zero2", "zero2", status="unfinished")
    (folder / "demo" / "report").mkdir()
    (folder / "_prepared" / "pets").mkdir(parents=True)
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stratlab", "list", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return int(end.value.code or 0), shown.out, shown.err

    return run


def test_each_run_says_how_far_it_came(results: Path) -> None:
    found = {f"{run.comparison}/{run.run}": run for run in list_runs(results)}
    assert sorted(found) == ["demo/ddp", "demo/fsdp", "other/zero2"]
    ddp, fsdp, zero2 = (found[name] for name in sorted(found))
    assert (ddp.status, ddp.strategy, ddp.step, ddp.steps, ddp.world_size) == ("finished", "ddp", 60, 60, 2)
    assert fsdp.status == "failed" and fsdp.ending == "out of memory (exit code 10)"
    assert fsdp.step is not None and fsdp.step < 60 and fsdp.samples_per_s is None
    assert ddp.samples_per_s and ddp.samples_per_s > 0 and ddp.started and ddp.started.endswith("+00:00")
    assert zero2.status == "at work" and zero2.attempts == 1


def test_analysed_traces_of_another_program_are_listed(results: Path) -> None:
    folder = results / "demo" / "theirs"
    (folder / "analysis").mkdir(parents=True)
    write_foreign(folder, {"experiment": "theirs", "source": "a.zip", "world_size": 8, "traces": []})
    (first, *_) = list_runs(results)
    expected = ListedRun("demo", "theirs", "traces only", world_size=8)
    assert first == expected and list_runs(results / "demo")[0] == expected
    with pytest.raises(UserError, match="this is one run"):
        list_runs(folder)


def test_the_newest_stands_last(results: Path) -> None:
    started = [run.started for run in list_runs(results)]
    assert started == sorted(started) and len(set(started)) == 3


def test_a_run_that_fell_silent_is_not_at_work(results: Path) -> None:
    for path in (results / "other" / "zero2").rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert {run.status for run in list_runs(results / "other")} == {"unfinished"}


def test_one_comparison_is_listed_like_the_results(results: Path) -> None:
    assert [run for run in list_runs(results) if run.comparison == "demo"] == list_runs(results / "demo")


def test_damaged_files_cost_a_cell_and_not_the_list(results: Path) -> None:
    folder = results / "demo" / "ddp"
    (folder / "config.json").write_text("{")
    (folder / "summary.json").write_text('{"samples_per_s": "fast", "strategy": 7}')
    (folder / "metrics.jsonl").write_bytes(b'{"kind": "step", "t": 1, "step": 3}\n{"kind": "st\xff')
    (found,) = (run for run in list_runs(results) if run.run == "ddp")
    assert (found.status, found.strategy, found.step, found.samples_per_s) == ("finished", None, 3, None)


def test_long_metrics_are_read_from_their_end(results: Path) -> None:
    path = results / "demo" / "ddp" / "metrics.jsonl"
    with path.open("a") as file:
        for step in range(61, 5000):
            file.write(json.dumps({"kind": "step", "t": 1.0, "step": step, "loss": 0.1}) + "\n")
    (found,) = (run for run in list_runs(results) if run.run == "ddp")
    assert found.step == 4999


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("nope", "no such folder"),
        ("_prepared", "no run in it"),
        ("demo/ddp", "this is one run; give the folder"),
    ],
)
def test_what_holds_no_runs_is_refused(call, results: Path, folder: str, words: str) -> None:
    code, out, err = call(results / folder)
    assert code == (2 if words.startswith("this is") else 3) and words in err and out == ""


def test_the_table_has_a_line_per_run_and_only_what_is_known(call, results: Path) -> None:
    code, out, _ = call(results)
    assert code == 0
    header, *lines = out.splitlines()
    assert "strategy" in header and "how it ended" in header
    assert "resource" not in header and "attempts" not in header
    assert len(lines) == 3 and any(
        "demo/fsdp" in line and "out of memory (exit code 10)" in line for line in lines
    )
    assert any("60/60" in line for line in lines)


def test_json_is_the_same_list(call, results: Path) -> None:
    code, out, _ = call(results, "--json")
    assert code == 0 and [build_run(fields) for fields in json.loads(out)] == list_runs(results)


def test_a_folder_or_a_cluster(call, results: Path) -> None:
    for wrong in ((), (results, "--on-cluster")):
        code, _, err = call(*wrong)
        assert code == 2 and "give either DIR or --on-cluster" in err


def test_a_cluster_has_its_volume_and_its_resources(call, lab: Lab, results: Path) -> None:
    at_work, waiting = build_resource("Running"), build_resource("Suspended", name="late")
    at_work["metadata"]["annotations"]["stratlab/run-directory"] = f"{results}/other/zero2"
    waiting["metadata"]["annotations"]["stratlab/run-directory"] = f"{results}/other/late"
    for resource in (at_work, waiting):
        lab[1].api.put(RUNS, resource)
    code, out, err = call("--on-cluster", "--claim", "stratlab-results", "--mount", results, "--json")
    assert code == 0, err
    found = {run["run"]: run for run in json.loads(out)}
    assert found.keys() == {"ddp", "fsdp", "zero2", "late"}
    assert found["zero2"]["resource"].endswith(": Running") and found["zero2"]["status"] == "at work"
    assert found["late"]["status"] == "Suspended" and found["late"]["step"] is None
    assert found["ddp"]["resource"] == ""


def test_a_run_that_was_told_to_stop_has_not_failed(call, lab: Lab, results: Path) -> None:
    folder = build_run_dir(results / "other", "hsdp", "hsdp", status="stopped")
    assert {run.run: run.status for run in list_runs(results)}["hsdp"] == "stopped"
    suspended, done = build_resource("Suspended", name="hsdp"), build_resource("Suspended", name="ddp")
    suspended["metadata"]["annotations"]["stratlab/run-directory"] = str(folder)
    done["metadata"]["annotations"]["stratlab/run-directory"] = f"{results}/demo/ddp"
    for resource in (suspended, done):
        lab[1].api.put(RUNS, resource)
    _, out, _ = call("--on-cluster", "--claim", "stratlab-results", "--mount", results, "--json")
    found = {run["run"]: run["status"] for run in json.loads(out)}
    assert (found["hsdp"], found["ddp"]) == ("Suspended", "finished")


def test_an_empty_volume_is_no_mistake(call, lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, out, err = call("--on-cluster", "--mount", tmp_path / "empty")
    assert code == 0 and "no run there yet" in out, err


def test_another_version_may_know_more_of_a_run(results: Path) -> None:
    run = build_run({"comparison": "demo", "run": "ddp", "status": "finished", "colour": "red"})
    assert (run.run, run.steps) == ("ddp", None)


def test_no_runs_are_said_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run in it; expected RESULTS"):
        list_runs(tmp_path)


def test_the_folder_above_the_results_names_them(results: Path) -> None:
    with pytest.raises(UserError, match=f"no run in it; did you mean {results}[?] expected RESULTS"):
        list_runs(results.parent)


def test_a_model_that_is_a_folder_is_called_by_its_name(results: Path) -> None:
    """`model` beside `model_path` is a default, which nobody asked for."""
    place = results / "demo" / "ddp" / "config.json"
    content = json.loads(place.read_text())
    content["config"] |= {"model": "vit_tiny", "model_path": "/data/tiny qwen/"}
    place.write_text(json.dumps(content))
    assert {run.run: run.model for run in list_runs(results)}["ddp"] == "tiny qwen"
