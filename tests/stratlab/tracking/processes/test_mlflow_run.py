"""Whoever comes last closes a run that nobody has closed in MLflow; against a real server."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from stratlab import cli
from stratlab.machine.processes import free_port
from stratlab.tracking.mlflow_run import close_run
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


def end_attempt(run_dir: Path, code: int) -> None:
    lines = [{"attempt": 1, "event": "started"}, {"attempt": 1, "event": "ended", "exit_code": code}]
    (run_dir / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def status(uri: str, run_dir: Path) -> str:
    run_id = json.loads((run_dir / "mlflow.json").read_text())["run_id"]
    return str(MlflowClient(uri).get_run(run_id).info.status)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["stratlab", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_an_open_run_is_closed_once_and_a_closed_one_left_alone(mlflow_server: str, run_dir: Path) -> None:
    assert close_run(run_dir, mlflow_server, exit_code=13).endswith("was still RUNNING, it is FAILED now")
    assert status(mlflow_server, run_dir) == "FAILED"
    assert close_run(run_dir, mlflow_server, exit_code=0) == ""
    assert status(mlflow_server, run_dir) == "FAILED"
    assert close_run(run_dir / "nothing", mlflow_server, exit_code=0) == ""


def test_a_server_that_is_away_costs_a_sentence(run_dir: Path) -> None:
    began = time.monotonic()
    said = close_run(run_dir, f"http://127.0.0.1:{free_port()}", exit_code=13)
    assert said.startswith("warning: the MLflow run ") and time.monotonic() - began < 20


@pytest.mark.parametrize(("code", "left"), [(13, "FAILED"), (0, "RUNNING")])
def test_the_waiter_closes_what_a_failed_run_left_open(
    mlflow_server: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, code: int, left: str
) -> None:
    """After a success the metrics may still be on their way."""
    end_attempt(run_dir, code)
    assert call(monkeypatch, "wait", str(run_dir), "--tracking-uri", mlflow_server) == 0
    assert status(mlflow_server, run_dir) == left


@pytest.mark.parametrize(("code", "left"), [(0, "FINISHED"), (143, "KILLED")])
def test_the_analysis_closes_it_also_when_it_fails_itself(
    mlflow_server: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, code: int, left: str
) -> None:
    end_attempt(run_dir, code)
    assert call(monkeypatch, "analyze", str(run_dir), "--tracking-uri", mlflow_server) == 3  # no traces
    assert status(mlflow_server, run_dir) == left


def test_the_analysis_leaves_a_run_open_that_goes_on(
    mlflow_server: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir / "attempts.jsonl").write_text('{"attempt": 1, "event": "started"}\n')
    assert call(monkeypatch, "analyze", str(run_dir), "--tracking-uri", mlflow_server) == 3
    assert status(mlflow_server, run_dir) == "RUNNING"
