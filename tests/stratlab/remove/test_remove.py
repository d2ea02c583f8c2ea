"""The folder of a run goes, here and on the volume of a cluster; nothing else does. A process here plays the pod."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from stratlab import cli
from tests.stratlab.cluster.lab import Lab
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.watch.objects import RUNS, build_run


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "results" / "demo", strategy, strategy)
    return tmp_path / "results"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["stratlab", "remove", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return int(end.value.code or 0), shown.out + shown.err

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_here(call, results: Path) -> None:
    (results / "demo" / ".logs" / "ddp").mkdir(parents=True)
    assert call(results / "demo" / "ddp", "--yes")[0] == 0
    assert names(results / "demo") == [".logs", "fsdp"] and names(results / "demo" / ".logs") == []
    code, shown = call(results / "demo" / "fsdp", "--yes", "--json")
    assert code == 0 and json.loads(shown) == {"removed": str(results / "demo" / "fsdp")}


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("demo", "not a run: nothing in it says"),
        ("demo/nope", "no such folder"),
        ("link", "a link; expected the folder of a run itself"),
        ("_prepared/pets", "not a run"),
    ],
)
def test_what_is_no_run_stays(call, results: Path, folder: str, words: str) -> None:
    (results / "link").symlink_to(results / "demo" / "ddp")
    (results / "_prepared" / "pets").mkdir(parents=True)
    (results / "_prepared" / "pets" / "DONE.json").write_text("{}")
    code, said = call(results / folder, "--yes")
    assert code == (2 if folder == "link" else 3) and words in said
    assert names(results / "demo") == ["ddp", "fsdp"]


def test_nothing_goes_unasked(call, results: Path) -> None:
    code, said = call(results / "demo" / "ddp")
    assert code == 2 and "give --yes" in said
    assert names(results / "demo") == ["ddp", "fsdp"]


def test_a_run_on_a_volume(call, lab: Lab, results: Path) -> None:
    code, said = call("demo/ddp", "--on-cluster", "--mount", results, "--yes")
    assert code == 0, said
    assert "demo/ddp: removed" in said and names(results / "demo") == ["fsdp"]
    code, said = call("demo/ddp", "--on-cluster", "--mount", results, "--yes")
    assert (
        code == 3
        and f"on the claim stratlab-results of namespace lab: {results}/demo/ddp: no such folder" in said
    )


def test_a_run_that_still_writes_stays(call, lab: Lab, results: Path) -> None:
    running = build_run("Running")
    running["metadata"]["annotations"]["stratlab/run-directory"] = "/results/demo/demo"
    lab[1].api.put(RUNS, running)
    code, said = call("demo/demo", "--on-cluster", "--mount", results, "--yes")
    assert code == 2 and "PyTorchJob demo is Running; first helm -n lab uninstall demo" in said
    assert lab[1].created == []


def test_a_path_is_no_name_on_a_cluster(call, lab: Lab) -> None:
    for wrong in ("ddp", "demo/../x", "/results/demo/ddp", "_prepared/pets"):
        code, said = call(wrong, "--on-cluster", "--yes")
        assert code == 2 and "give COMPARISON/RUN" in said


def age(folder: Path, days: float) -> None:
    """As if all of it had been recorded so many days ago."""
    for name in ("attempts.jsonl", "metrics.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        newest = max(line["t"] for line in lines)
        moved = [line | {"t": line["t"] - newest + time.time() - days * 86400} for line in lines]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in moved))
        os.utime(folder / name, (0, 0))


def test_what_is_older_goes_and_the_rest_stays(call, results: Path) -> None:
    age(results / "demo" / "ddp", 31)
    age(results / "demo" / "fsdp", 29)
    code, said = call(results, "--older-than", "30d")
    assert code == 2 and str(results / "demo" / "ddp") in said and "fsdp" not in said, "nothing unasked"
    code, said = call(results, "--older-than", "30d", "--yes", "--json")
    assert code == 0 and json.loads(said) == {"removed": [str(results / "demo" / "ddp")]}
    assert names(results / "demo") == ["fsdp"]
    code, said = call(results / "demo", "--older-than", "4w", "--yes")
    assert code == 0 and names(results / "demo") == []


def test_what_is_older_on_a_volume(call, lab: Lab, results: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        age(results / "demo" / strategy, 31)
    suspended = build_run("Suspended", name="fsdp")
    suspended["metadata"]["annotations"]["stratlab/run-directory"] = "/results/demo/fsdp"
    lab[1].api.put(RUNS, suspended)
    place = ("--mount", results, "--image", "lab", "--claim", "stratlab-results")
    code, said = call("--older-than", "30d", "--on-cluster", *place, "--yes")
    assert code == 0 and "demo/ddp: removed" in said, said
    assert names(results / "demo") == ["fsdp"], "a suspended run records nothing, and goes on one day"


@pytest.mark.parametrize(
    "arguments",
    [["--older-than", "30d"], ["--older-than", "30", "x"], ["a", "b", "--older-than", "1d"], []],
)
def test_what_may_go_must_be_said(call, results: Path, arguments: list[str]) -> None:
    code, _ = call(*(results if each == "x" else each for each in arguments), "--yes")
    assert code == 2 and names(results / "demo") == ["ddp", "fsdp"]


def test_the_run_in_mlflow_goes_first_and_a_server_that_is_away_keeps_the_folder(
    call, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = results / "demo" / "ddp"
    known = {"tracking_uri": "http://mlflow:5000", "experiment_id": "1", "run_id": "abc"}
    (folder / "mlflow.json").write_text(json.dumps(known))
    asked: list[tuple[str, str]] = []

    class Client:
        def __init__(self, uri: str) -> None:
            self.uri = uri

        def delete_run(self, run_id: str) -> None:
            asked.append((self.uri, run_id))
            if len(asked) == 1:
                raise OSError("connection refused")

    monkeypatch.setattr("mlflow.tracking.MlflowClient", Client)
    code, said = call(folder, "--yes", "--with-mlflow")
    assert code == 2 and "connection refused" in said and folder.is_dir()
    code, said = call(folder, "--yes", "--with-mlflow")
    assert code == 0 and "the MLflow run abc is deleted" in said and not folder.exists()
    assert asked == [("http://mlflow:5000", "abc")] * 2
