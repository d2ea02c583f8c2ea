"""The comparison's report in MLflow, against a real server on loopback."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.mlflow_entry import NOT_THERE, NotLogged, describe, log_comparison, log_for_user
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.reading.experiment import load_experiment
from stratlab.compare.showing.report_files import FILES, write_report
from stratlab.machine.processes import free_port
from stratlab.tracking.runs_page import find_places
from stratlab.user_error import UserError
from tests.redirecting_server import run_redirect
from tests.stratlab.example_run import build_run_dir, write_json


def build_comparison(root: Path, uri: str) -> None:
    """Two run directories and their runs in MLflow."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.create_experiment(root.name)
    for strategy in ("ddp", "fsdp"):
        folder = build_run_dir(root, strategy, strategy, device="cuda", hosts=["n"])
        run_id = client.create_run(experiment, run_name=strategy).info.run_id
        server = {"tracking_uri": uri, "experiment_id": experiment, "run_id": run_id}
        write_json(folder / "mlflow.json", server)
        client.log_metric(run_id, "loss", 1.5)
        client.log_metric(run_id, "samples_per_s", 100.0)
        client.log_metric(run_id, "nobody_asked", 1.0)
        for name in ("config.json", "summary.json", "attempts.jsonl", "metrics.jsonl"):
            client.log_artifact(run_id, str(folder / name), "run")


def test_the_report_lies_beside_its_runs_once(mlflow_server: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    root = tmp_path / f"demo-{uuid.uuid4().hex[:8]}"
    build_comparison(root, mlflow_server)
    runs = load_runs(root)
    report = compare(runs)
    write_report(report, runs, root / "report")
    said = [
        log_for_user(report, runs, root / "report", None, "", None) for _ in range(2)
    ]  # where the runs went
    assert said[0] == said[1] and said[0].startswith(f"report in MLflow: {mlflow_server}/#/experiments/")
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name(root.name)
    (run,) = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == "comparison"]
    assert run.info.run_id in said[0] and run.info.status == "FINISHED"
    assert run.data.tags["verdict"] == "comparable" and "samples_per_s: ddp" in run.data.tags["best"]
    assert run.data.tags["mlflow.note.content"] == describe(report) == experiment.tags["mlflow.note.content"]
    files = {entry.path for entry in client.list_artifacts(run.info.run_id, "comparison")}
    assert files == {f"comparison/{name}" for name in FILES}
    stored = client.download_artifacts(run.info.run_id, "comparison/report.json", str(tmp_path))
    assert json.loads(Path(stored).read_text()) == json.loads((root / "report/report.json").read_text())
    view = json.loads(experiment.tags["mlflow.sharedViewState.stratlab"])
    charts = [(chart["type"], chart["uuid"]) for chart in view["compareRunCharts"]]
    assert charts == [("BAR", "samples_per_s"), ("LINE", "loss")], "what the runs have, in this order"
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    page = f"#/experiments/{experiment.experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey=stratlab"
    assert said[0].splitlines()[1] == f"charts in MLflow: {mlflow_server}/{page}"
    assert (root.name, page) in find_places(mlflow_server)
    # and is no run of the next comparison
    names = [r.name for r in load_experiment(root.name, mlflow_server, tmp_path / "into")]
    assert names == ["ddp", "fsdp"]


def test_a_server_that_is_away_costs_a_sentence(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy)
    runs = load_runs(tmp_path / "demo")
    uri = f"http://127.0.0.1:{free_port()}"
    said = log_for_user(compare(runs), runs, tmp_path, None, uri, None)
    assert said.startswith(
        f"{NOT_THERE}: {uri} does not answer; that of a rehearsal ends with it, name its store"
    )
    away = "http://mlflow.invalid:5000"
    said = log_for_user(compare(runs), runs, tmp_path, None, away, None)
    assert said == f"{NOT_THERE}: {away} does not answer"
    with pytest.raises(UserError, match="holds no mlflow.db"):
        log_for_user(compare(runs), runs, tmp_path, None, "", tmp_path)


def test_a_server_elsewhere_is_named(mlflow_server: str) -> None:
    with (
        run_redirect(mlflow_server) as uri,
        pytest.raises(
            NotLogged, match=f"redirects to {mlflow_server}: set run.mlflow.trackingUri to {mlflow_server}"
        ),
    ):
        log_comparison({}, Path(), uri, "nobody")


def test_without_a_server_nothing_is_said(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        (build_run_dir(tmp_path / "demo", strategy, strategy) / "mlflow.json").unlink()
    runs = load_runs(tmp_path / "demo")
    assert log_for_user(compare(runs), runs, tmp_path, None, "", None) == ""


def test_runs_of_two_servers_are_said_to_be_in_neither(tmp_path: Path) -> None:
    uris = ("http://mlflow:5000", "https://mlflow:5000")
    for strategy, uri in zip(("ddp", "fsdp"), uris, strict=True):
        write_json(
            build_run_dir(tmp_path / "demo", strategy, strategy) / "mlflow.json", {"tracking_uri": uri}
        )
    runs = load_runs(tmp_path / "demo")
    said = log_for_user(compare(runs), runs, tmp_path, None, "", None)
    assert said.startswith(NOT_THERE) and all(uri in said for uri in uris)


def test_an_experiment_that_is_not_there_is_named(mlflow_server: str, tmp_path: Path) -> None:
    with pytest.raises(NotLogged, match="has no experiment nobody"):
        log_comparison({}, tmp_path, mlflow_server, "nobody")


def test_the_answer_in_words(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, device="cuda", hosts=["n"])
    text = describe(compare(load_runs(tmp_path / "demo")))
    assert (
        text.startswith("**comparable**: nothing that matters differs") and "samples_per_s: **ddp**" in text
    )
    assert "fsdp is" in text and "slower per step than ddp" in text
