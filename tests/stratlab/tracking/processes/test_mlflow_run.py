"""Whoever comes last closes a run that nobody has closed in MLflow; against a real server."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from stratlab import cli
from stratlab.processes import free_port
from stratlab.tracking import close_run
from tests.stratlab.example_run import write_json


@pytest.fixture
def run_dir(mlflow_server: str, tmp_path: Path) -> Path:
    """Of a run that is RUNNING in MLflow."""
    client = MlflowClient(mlflow_server)
    found = client.get_experiment_by_name("left open")
    experiment_id = found.experiment_id if found else client.create_experiment("left open")
    run_id = client.create_run(experiment_id).info.run_id
    write_json(tmp_path / "mlflow.json", {"tracking_uri": mlflow_server, "run_id": run_id})
    write_json(tmp_path / "config.json", {"run": "try", "config": {}, "resolved": {}})
    return tmp_path


def status(uri: str, run_dir: Path) -> str:
    run_id = json.loads((run_dir / "mlflow.json").read_text())["run_id"]
    return str(MlflowClient(uri).get_run(run_id).info.status)


def test_an_open_run_is_closed_once_and_a_closed_one_left_alone(mlflow_server: str, run_dir: Path) -> None:
    assert "FAILED" in close_run(run_dir, mlflow_server, exit_code=13)
    assert close_run(run_dir, mlflow_server, exit_code=0) == ""
    assert status(mlflow_server, run_dir) == "FAILED"
    assert close_run(run_dir / "nothing", mlflow_server, exit_code=0) == ""
    began = time.monotonic()
    assert close_run(run_dir, f"http://127.0.0.1:{free_port()}", exit_code=13).startswith("warning: ")
    assert time.monotonic() - began < 20, "a server that is away costs a sentence"


@pytest.mark.parametrize(
    ("verb", "code", "left"),
    [
        ("wait", 13, "FAILED"),
        ("wait", 0, "RUNNING"),  # after a success the metrics may still be on their way
        ("analyze", 0, "FINISHED"),  # also when it fails itself: there are no traces
        ("analyze", 143, "KILLED"),
        ("analyze", None, "RUNNING"),  # it goes on
    ],
)
def test_whoever_comes_last_closes_what_was_left_open(
    mlflow_server: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, verb: str, code: int | None, left: str
) -> None:
    lines = [{"attempt": 1, "event": "started"}, {"attempt": 1, "event": "ended", "exit_code": code}]
    kept = lines[: 1 if code is None else 2]
    (run_dir / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    monkeypatch.setattr(sys, "argv", ["stratlab", verb, str(run_dir), "--tracking-uri", mlflow_server])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code in (0, None) if verb == "wait" else end.value.code == 3
    assert status(mlflow_server, run_dir) == left
