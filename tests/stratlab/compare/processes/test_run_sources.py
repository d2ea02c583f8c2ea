"""Against a real MLflow server on loopback."""

import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratlab import UserError
from stratlab.compare.comparison import compare
from stratlab.compare.run_sources import NOT_IN_MLFLOW, _fetch, load_experiment, load_runs
from stratlab.machine import free_port
from stratlab.tracking_server import ServerFailed
from tests.codes import find_codes
from tests.redirecting_server import run_redirect
from tests.stratlab.compare.building import build
from tests.stratlab.example_run import build_run_dir


@pytest.fixture
def experiment(mlflow_server: str) -> str:
    from mlflow.tracking import MlflowClient

    name = f"demo-{uuid.uuid4().hex[:8]}"
    MlflowClient(mlflow_server).create_experiment(name)
    return name


def send(uri: str, experiment: str, folder: Path, run_name: str) -> str:
    """Logs a run directory as the analysis does: the run's files under run/, the report under analysis/."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    run_id = str(client.create_run(experiment_id, run_name=run_name).info.run_id)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = path.relative_to(folder).parent.as_posix()
        client.log_artifact(
            run_id, str(path), place if place == "analysis" else f"run/{place}".removesuffix("/.")
        )
    return run_id


def test_an_experiment_reads_like_the_folder(
    mlflow_server: str, experiment: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = build(tmp_path / "demo", ["ddp", "fsdp"])
    ids = {run: send(mlflow_server, experiment, root / run, run) for run in ("ddp", "fsdp")}
    capfd.readouterr()
    runs = load_experiment(experiment, mlflow_server, tmp_path / "into")
    assert capfd.readouterr().err == "", "a progress bar would cross the table"
    assert [(run.name, run.status, run.missing, run.problems) for run in runs] == [
        ("ddp", "finished", [], []),
        ("fsdp", "finished", [], []),
    ]
    assert {run.name: run.mlflow_run_id for run in runs} == ids
    assert {run.tuning for run in runs} == {NOT_IN_MLFLOW}
    fetched, local = compare([replace(run, tuning="") for run in runs]), compare(load_runs(root))
    for row in (*fetched["runs"], *local["runs"]):
        del row["run_dir"], row["mlflow_run_id"]
    assert fetched == local
    # traces and logs stay where they are
    names = {path.name for path in (tmp_path / "into").rglob("*") if path.is_file()}
    assert "report.json" in names and not names & {"rank0_trace.json", "rank0.log"}
    # a second time into the same folder: files of the first do not stay
    (tmp_path / "into" / "ddp" / "stale.json").write_text("{}")
    assert len(load_experiment(experiment, mlflow_server, tmp_path / "into")) == 2
    assert not (tmp_path / "into" / "ddp" / "stale.json").exists()


def test_names_that_are_no_folders_and_runs_without_files(
    mlflow_server: str, experiment: str, tmp_path: Path
) -> None:
    from mlflow.tracking import MlflowClient

    folder = build_run_dir(tmp_path / "demo", "ddp", "ddp", analysis=False)
    names = ("../outside", "twice", "twice")
    ids = {send(mlflow_server, experiment, folder, name) for name in names}
    client = MlflowClient(mlflow_server)
    client.create_run(client.get_experiment_by_name(experiment).experiment_id, run_name="empty")
    runs = load_experiment(experiment, mlflow_server, tmp_path / "into")
    assert {run.folder for run in runs} == {tmp_path / "into" / name for name in {*ids, "empty"}}
    assert [run.name for run in runs if run.status == "not a run"] == ["empty"]
    assert {tuple(run.missing) for run in runs if run.name != "empty"} == {("analysis/report.json",)}


def test_what_cannot_be_fetched_is_named(
    mlflow_server: str, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_HTTP_REDIRECTS", raising=False)
    away = f"http://127.0.0.1:{free_port()}"
    for name, uri, code in (
        ("demoo", mlflow_server, "SL-experiment-absent"),
        (experiment, mlflow_server, "SL-experiment-empty"),
        ("demo", away, "SL-experiment-server-away"),
    ):
        with pytest.raises((UserError, ServerFailed)) as refused:
            load_experiment(name, uri, tmp_path / "into")
        assert find_codes(refused.value) == [code] and uri in str(refused.value)
        assert code != "SL-experiment-absent" or experiment in str(refused.value), "those that there are"
    with run_redirect(mlflow_server) as uri, pytest.raises(UserError) as moved:
        load_experiment(experiment, uri, tmp_path / "into")
    assert find_codes(moved.value) == ["SL-experiment-server-failed"] and mlflow_server in str(moved.value)
    assert not (tmp_path / "into").exists()


def test_a_folder_of_the_users_own_is_not_replaced(
    mlflow_server: str, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare --experiment NAME --output .` in a folder whose runs/ is the results of somebody."""
    send(mlflow_server, experiment, build_run_dir(tmp_path / "demo", "ddp", "ddp"), "ddp")
    mine = build_run_dir(tmp_path / "work" / "runs", "ddp", "ddp") / "checkpoints" / "step_00000100"
    mine.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(UserError) as refused:
        load_experiment(experiment, mlflow_server, Path("runs"))
    assert find_codes(refused.value) == ["SL-experiment-folder-taken"]
    assert mine.is_dir() and sorted(path.name for path in Path("runs").iterdir()) == ["ddp"]


class HostileServer:
    """Stands in for MLflow's client on a server that names what it likes."""

    def __init__(self, path: str) -> None:
        self.path = path

    def list_artifacts(self, run_id: str, folder: str) -> list[Any]:
        return [SimpleNamespace(path=self.path, is_dir=False)] if folder == "run" else []

    def download_artifacts(self, run_id: str, path: str, into: str) -> str:
        (Path(into) / "config.json").write_text("{}")
        return str(Path(into) / "config.json")


@pytest.mark.parametrize("name", ["{0}/config.json", "run/{0}/config.json", "run/../../outside/config.json"])
def test_no_artifact_is_written_outside_of_its_run(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "into").mkdir()
    client: Any = HostileServer(name.format(outside))
    run: Any = SimpleNamespace(info=SimpleNamespace(run_id="r", experiment_id="1"))
    try:
        _fetch(client, run, tmp_path / "into" / "ddp", "http://mlflow:5000")
    except UserError as refusal:
        assert find_codes(refusal) == ["SL-artifact-path"]
    assert list(outside.iterdir()) == []
