"""Which runs there are, in a folder. On a cluster: processes/test_list_on_cluster.py."""

import json
import os
from functools import partial

import pytest

from stratlab.run_folders import build_run, list_answers, list_runs, name_comparisons
from tests.codes import find_codes
from tests.stratlab.compare.building import edit
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.raised import raised


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    build_run_dir(folder / "demo", "ddp", "ddp")
    build_run_dir(folder / "demo", "fsdp", "fsdp", status="failed")
    build_run_dir(folder / "other", "zero2", "zero2", status="unfinished")
    (folder / "demo" / "report").mkdir()
    (folder / "_prepared" / "pets").mkdir(parents=True)
    return folder


@pytest.fixture
def call(stratlab):
    return partial(stratlab, "list")


def find(results):
    return {run.run: run for run in list_runs(results)}


def test_each_run_says_how_far_it_came_and_the_newest_stands_last(results):
    build_run_dir(results / "other", "hsdp", "hsdp", status="stopped")
    found = find(results)
    ddp, fsdp, zero2 = found["ddp"], found["fsdp"], found["zero2"]
    assert (ddp.status, ddp.strategy, ddp.step, ddp.steps, ddp.world_size) == ("finished", "ddp", 60, 60, 2)
    assert fsdp.status == "failed" and "10" in fsdp.ending and found["hsdp"].status == "stopped"
    assert fsdp.step is not None and fsdp.step < 60 and fsdp.samples_per_s is None
    assert ddp.samples_per_s and ddp.samples_per_s > 0 and ddp.started and ddp.started.endswith("+00:00")
    assert zero2.status == "at work" and zero2.attempts == 1
    started = [run.started for run in list_runs(results)]
    assert started == sorted(started) and len(set(started)) == 4
    assert [run for run in list_runs(results) if run.comparison == "demo"] == list_runs(results / "demo")
    for path in (results / "other" / "zero2").rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert find(results)["zero2"].status == "unfinished", "it fell silent"


@pytest.mark.parametrize(
    ("place", "code", "ended"),
    [("_prepared", "SL-list-no-run", 3), ("demo/ddp", "SL-list-one-run", 2), ("..", "SL-list-no-run", 2)],
)
def test_what_holds_no_runs_is_refused(call, results, place, code, ended):
    refused = raised(list_runs, (results / place).resolve())
    assert find_codes(refused) == [code] and (place != ".." or str(results) in str(refused))
    assert call((results / place).resolve())[:2] == (ended, "")


def test_the_table_has_a_line_per_run_and_json_is_the_same_list(call, results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = call(results)
    header, *lines = out.partition("\n\n")[0].splitlines()
    assert code == 0 and "status" in header and "resource" not in header and "attempts" not in header
    assert len(lines) == 3 and "60/60" in out
    answers = list_answers(list_runs(results))
    assert all(sentence in " ".join(out.split()) for _, sentence in answers)
    assert any("demo/fsdp" in sentence and "10" in sentence for _, sentence in answers), "why it failed"
    assert name_comparisons(list_runs(results)) == []
    build_run_dir(results / "demo", "hsdp", "hsdp")
    assert name_comparisons(list_runs(results)) == ["demo"]
    assert "strategy" not in header, "all runs are called after theirs"
    build_run_dir(results / "demo", "again", "ddp")
    edit(results / "demo" / "ddp" / "config.json", lambda config: config["config"].update(model="cnn"))
    named = call(results)[1].partition("\n")[0]
    assert "strategy" in named and "model" in named and not {"model", "ranks"} & {*header.split()}
    code, out, _ = call(results, "--json")
    assert code == 0 and [build_run(fields) for fields in json.loads(out)] == list_runs(results)
    for wrong in ((), (results, "--on-cluster")):
        code, _, err = call(*wrong)
        assert code == 2 and find_codes(err) == ["SL-list-source"]
