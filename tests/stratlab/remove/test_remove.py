"""The folder of a run goes, here and on the volume of a cluster; nothing else does. A process here plays the pod."""

import json
import os
import time

import pytest

from tests.codes import find_codes
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.watch.objects import RUNS, build_run


@pytest.fixture
def results(tmp_path):
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "results" / "demo", strategy, strategy)
    return tmp_path / "results"


@pytest.fixture
def call(stratlab):
    def run(*arguments):
        code, out, err = stratlab("remove", *arguments)
        return code, out + err

    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_run_here_goes_when_that_is_said(call, results):
    (results / "demo" / ".logs" / "ddp").mkdir(parents=True)
    code, said = call(results / "demo" / "ddp")
    assert code == 2 and find_codes(said) == ["SL-remove-unasked"]
    assert names(results / "demo") == [".logs", "ddp", "fsdp"]
    assert call(results / "demo" / "ddp", "--yes")[0] == 0
    assert names(results / "demo") == [".logs", "fsdp"] and names(results / "demo" / ".logs") == []
    code, shown = call(results / "demo" / "fsdp", "--yes", "--json")
    assert code == 0 and json.loads(shown) == {"removed": str(results / "demo" / "fsdp")}


@pytest.mark.parametrize(("folder", "expected"), [("demo", 3), ("demo/nope", 3), ("link", 2)])
def test_what_is_no_run_stays(call, results, folder, expected):
    (results / "link").symlink_to(results / "demo" / "ddp")
    code, said = call(results / folder, "--yes")
    assert code == expected and str(results / folder) in said and names(results / "demo") == ["ddp", "fsdp"]


def test_a_run_on_a_volume(call, lab, results):
    place = ("--on-cluster", "--mount", results, "--yes")
    assert call("demo/ddp", *place)[0] == 0 and names(results / "demo") == ["fsdp"]
    code, said = call("demo/ddp", *place)
    assert code == 3 and f"{results}/demo/ddp" in said
    running = build_run("Running")
    running["metadata"]["annotations"]["stratlab/run-directory"] = "/results/demo/demo"
    lab[1].api.put(RUNS, running)
    lab[1].created.clear()
    code, said = call("demo/demo", *place)
    assert code == 2 and find_codes(said) == ["SL-remove-not-ended"], "it still writes"
    for wrong in ("ddp", "/results/demo/ddp"):
        code, said = call(wrong, *place)
        assert code == 2 and find_codes(said) == ["SL-name-not-comparison-run"]
    assert lab[1].created == []


def age(folder, days):
    """As if all of it had been recorded so many days ago."""
    for name in ("attempts.jsonl", "metrics.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        newest = max(line["t"] for line in lines)
        moved = [line | {"t": line["t"] - newest + time.time() - days * 86400} for line in lines]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in moved))
        os.utime(folder / name, (0, 0))


def test_what_is_older_goes_and_the_rest_stays(call, results):
    age(results / "demo" / "ddp", 31)
    age(results / "demo" / "fsdp", 29)
    code, said = call(results, "--older-than", "30d")
    assert code == 2 and str(results / "demo" / "ddp") in said and "fsdp" not in said, "nothing unasked"
    code, said = call(results, "--older-than", "30d", "--yes", "--json")
    assert code == 0 and json.loads(said) == {"removed": [str(results / "demo" / "ddp")]}
    assert names(results / "demo") == ["fsdp"]
    assert call(results / "demo", "--older-than", "4w", "--yes")[0] == 0 and names(results / "demo") == []


def test_what_is_older_on_a_volume(call, lab, results):
    for strategy in ("ddp", "fsdp"):
        age(results / "demo" / strategy, 31)
    suspended = build_run("Suspended", name="fsdp")
    suspended["metadata"]["annotations"]["stratlab/run-directory"] = "/results/demo/fsdp"
    lab[1].api.put(RUNS, suspended)
    place = ("--mount", results, "--image", "lab", "--claim", "stratlab-results")
    code, said = call("--older-than", "30d", "--on-cluster", *place, "--yes")
    assert code == 0, said
    assert names(results / "demo") == ["fsdp"], "a suspended run records nothing, and goes on one day"


def test_what_may_go_must_be_said(call, results):
    for arguments, error in (
        (["--older-than", "30d"], "SL-older-than-folder"),
        (["--older-than", "30", results], "SL-older-than-form"),
        ([], "SL-remove-nothing"),
    ):
        code, said = call(*arguments, "--yes")
        assert code == 2 and find_codes(said) == [error]
    assert names(results / "demo") == ["ddp", "fsdp"]


def test_the_run_in_mlflow_goes_first_and_a_server_that_is_away_keeps_the_folder(call, results, monkeypatch):
    folder = results / "demo" / "ddp"
    known = {"tracking_uri": "http://mlflow:5000", "experiment_id": "1", "run_id": "abc"}
    (folder / "mlflow.json").write_text(json.dumps(known))
    asked = []

    class Client:
        def __init__(self, uri):
            self.uri = uri

        def delete_run(self, run_id):
            asked.append((self.uri, run_id))
            if len(asked) == 1:
                raise OSError("connection refused")

    monkeypatch.setattr("mlflow.tracking.MlflowClient", Client)
    code, said = call(folder, "--yes", "--with-mlflow")
    assert code == 2 and "connection refused" in said and folder.is_dir()
    assert call(folder, "--yes", "--with-mlflow")[0] == 0 and not folder.exists()
    assert asked == [("http://mlflow:5000", "abc")] * 2
