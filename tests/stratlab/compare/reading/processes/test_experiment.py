"""Against a real MLflow server on loopback."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.reading.experiment import _fetch, load_experiment
from stratlab.compare.reading.kept_tuning import NOT_IN_MLFLOW
from stratlab.machine.processes import free_port
from stratlab.tracking.server import ServerFailed
from stratlab.user_error import UserError
from tests.redirecting_server import run_redirect
from tests.stratlab.example_run import build_run_dir


@pytest.fixture
def experiment(mlflow_server: str) -> str:
    from mlflow.tracking import MlflowClient

    name = f"demo-{uuid.uuid4().hex[:8]}"
    MlflowClient(mlflow_server).create_experiment(name)
    return name


def _send(uri: str, experiment: str, folder: Path, run_name: str) -> str:
    """Logs a run directory as the analysis does: the run's files under run/, the report under analysis/."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    run_id = str(client.create_run(experiment_id, run_name=run_name).info.run_id)
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder).parent.as_posix()
        if path.is_file() and place == "analysis":
            client.log_artifact(run_id, str(path), "analysis")
        elif path.is_file():
            client.log_artifact(run_id, str(path), f"run/{place}" if place != "." else "run")
    return run_id


def test_an_experiment_reads_like_the_folder(
    mlflow_server: str, experiment: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ids = {}
    for strategy in ("ddp", "fsdp"):
        folder = build_run_dir(tmp_path / "demo", strategy, strategy)
        ids[strategy] = _send(mlflow_server, experiment, folder, strategy)
    capfd.readouterr()
    runs = load_experiment(experiment, mlflow_server, tmp_path / "into")
    assert "Downloading" not in capfd.readouterr().err, "a progress bar would cross the table"
    assert [(run.name, run.status, run.missing, run.problems) for run in runs] == [
        ("ddp", "finished", [], []),
        ("fsdp", "finished", [], []),
    ]
    assert {run.name: run.mlflow_run_id for run in runs} == ids
    assert {run.tuning for run in runs} == {NOT_IN_MLFLOW}
    runs = [replace(run, tuning="") for run in runs]
    fetched, local = compare(runs), compare(load_runs(tmp_path / "demo"))
    for report in (fetched, local):
        for row in report["runs"]:
            del row["run_dir"], row["mlflow_run_id"]
    assert fetched == local
    # traces and logs stay where they are
    names = {path.name for path in (tmp_path / "into").rglob("*") if path.is_file()}
    assert "rank0_trace.json" not in names and "rank0.log" not in names and "report.json" in names
    # a second time into the same folder: files of the first do not stay
    (tmp_path / "into" / "ddp" / "stale.json").write_text("{}")
    assert [run.name for run in load_experiment(experiment, mlflow_server, tmp_path / "into")] == [
        "ddp",
        "fsdp",
    ]
    assert not (tmp_path / "into" / "ddp" / "stale.json").exists()


def test_names_that_are_no_folders_and_runs_without_files(
    mlflow_server: str, experiment: str, tmp_path: Path
) -> None:
    from mlflow.tracking import MlflowClient

    folder = build_run_dir(tmp_path / "demo", "ddp", "ddp", analysis=False)
    outside = _send(mlflow_server, experiment, folder, "../outside")
    twice = {_send(mlflow_server, experiment, folder, "twice") for _ in range(2)}
    client = MlflowClient(mlflow_server)
    empty = client.create_run(client.get_experiment_by_name(experiment).experiment_id, run_name="empty")
    runs = load_experiment(experiment, mlflow_server, tmp_path / "into")
    assert {run.folder.name for run in runs} == {outside, *twice, "empty"}
    assert all(run.folder.parent == tmp_path / "into" for run in runs)
    found = next(run for run in runs if run.name == "empty")
    assert (found.status, found.ending) == (
        "not a run",
        "has no artifacts under run/, where its analysis puts them",
    )
    assert found.mlflow_run_id == empty.info.run_id
    assert compare(runs)["not_runs"][0]["why"] == "has no artifacts under run/, where its analysis puts them"
    assert {tuple(run.missing) for run in runs if run is not found} == {("analysis/report.json",)}


def test_an_experiment_that_is_not_there_names_those_that_are(
    mlflow_server: str, experiment: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"--experiment demoo: not at .*; there are: .*{experiment}"):
        load_experiment("demoo", mlflow_server, tmp_path / "into")
    with pytest.raises(ValueError, match="has no runs"):
        load_experiment(experiment, mlflow_server, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_a_server_that_is_away_is_an_error_within_seconds(tmp_path: Path) -> None:
    with pytest.raises(
        ServerFailed, match=r"--experiment demo: no MLflow server answers at http://127\.0\.0\.1:\d+$"
    ):
        load_experiment("demo", f"http://127.0.0.1:{free_port()}", tmp_path / "into")


def test_a_redirect_is_not_followed_and_the_right_address_is_named(
    mlflow_server: str, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_HTTP_REDIRECTS", raising=False)
    with (
        run_redirect(mlflow_server) as uri,
        pytest.raises(UserError, match=f"set run.mlflow.trackingUri to {mlflow_server}"),
    ):
        load_experiment(experiment, uri, tmp_path)


def test_a_folder_of_the_users_own_is_not_replaced(
    mlflow_server: str, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare --experiment NAME --output .` in a folder whose runs/ is the results of somebody."""
    _send(mlflow_server, experiment, build_run_dir(tmp_path / "demo", "ddp", "ddp"), "ddp")
    mine = build_run_dir(tmp_path / "work" / "runs", "ddp", "ddp") / "checkpoints" / "step_00000100"
    mine.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(
        UserError, match="runs/ddp: is there, and was not downloaded.*choose another --output"
    ):
        load_experiment(experiment, mlflow_server, Path("runs"))
    assert mine.is_dir() and sorted(path.name for path in Path("runs").iterdir()) == ["ddp"]


class HostileServer:
    """Stands in for MLflow's client on a server that names what it likes."""

    def __init__(self, path: str) -> None:
        self.path = path

    def list_artifacts(self, run_id: str, folder: str) -> list[Any]:
        return [SimpleNamespace(path=self.path, is_dir=False)] if folder == "run" else []

    def download_artifacts(self, run_id: str, path: str, into: str) -> str:
        file = Path(into) / "config.json"
        file.write_text("{}")
        return str(file)


@pytest.mark.parametrize("name", ["{0}/config.json", "run/{0}/config.json", "run/../../outside/config.json"])
def test_no_artifact_is_written_outside_of_its_run(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "into").mkdir()
    client, run = (
        HostileServer(name.format(outside)),
        SimpleNamespace(info=SimpleNamespace(run_id="r", experiment_id="1")),
    )
    try:
        _fetch(client, run, tmp_path / "into" / "ddp", "http://mlflow:5000")  # type: ignore[arg-type]
    except UserError as refusal:
        assert "refusing the artifact path" in str(refusal)
    assert list(outside.iterdir()) == []
