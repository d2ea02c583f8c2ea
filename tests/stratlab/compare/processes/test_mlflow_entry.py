"""The comparison's report in MLflow, against a real server on loopback."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.publishing import NOT_THERE, NotLogged, describe, log_comparison, log_for_user
from stratlab.compare.report_files import FILES, write_report
from stratlab.compare.run_sources import load_experiment, load_runs
from stratlab.processes import free_port
from stratlab.tracking import find_places
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.redirecting_server import run_redirect
from tests.stratlab.compare.building import build
from tests.stratlab.example_run import write_json


def build_comparison(root: Path, uri: str) -> None:
    """Two run directories and their runs in MLflow."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.create_experiment(root.name)
    for run in ("ddp", "fsdp"):
        folder = build(root, [run]) / run
        run_id = client.create_run(experiment, run_name=run).info.run_id
        server = {"tracking_uri": uri, "experiment_id": experiment, "run_id": run_id}
        write_json(folder / "mlflow.json", server)
        for name in ("loss", "samples_per_s", "nobody_asked"):
            client.log_metric(run_id, name, 1.5)
        for name in ("config.json", "summary.json", "attempts.jsonl", "metrics.jsonl"):
            client.log_artifact(run_id, str(folder / name), "run")


def test_the_report_lies_beside_its_runs_once(mlflow_server: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    root = tmp_path / f"demo-{uuid.uuid4().hex[:8]}"
    build_comparison(root, mlflow_server)
    runs = load_runs(root)
    report = compare(runs)
    write_report(report, runs, root / "report")
    said = {log_for_user(report, runs, root / "report", None, "", None) for _ in range(2)}
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name(root.name)
    (run,) = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == "comparison"]
    page = f"#/experiments/{experiment.experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey=stratlab"
    (both,) = said
    assert run.info.run_id in both.splitlines()[0] and both.splitlines()[1].endswith(
        f"{mlflow_server}/{page}"
    )
    assert run.info.status == "FINISHED" and (root.name, page) in find_places(mlflow_server)
    assert run.data.tags["verdict"] == "comparable" and "samples_per_s: ddp" in run.data.tags["best"]
    assert run.data.tags["mlflow.note.content"] == describe(report) == experiment.tags["mlflow.note.content"]
    files = {entry.path for entry in client.list_artifacts(run.info.run_id, "comparison")}
    assert files == {f"comparison/{name}" for name in FILES}
    stored = client.download_artifacts(run.info.run_id, "comparison/report.json", str(tmp_path))
    assert json.loads(Path(stored).read_text()) == json.loads((root / "report/report.json").read_text())
    view = json.loads(experiment.tags["mlflow.sharedViewState.stratlab"])
    charts = [(chart["type"], chart["uuid"]) for chart in view["compareRunCharts"]]
    assert charts == [("BAR", "samples_per_s"), ("LINE", "loss")], "what the runs have, in this order"
    # and is no run of the next comparison
    names = [r.name for r in load_experiment(root.name, mlflow_server, tmp_path / "into")]
    assert names == ["ddp", "fsdp"]


def test_a_server_that_is_away_several_or_none_costs_a_sentence(tmp_path: Path) -> None:
    runs = load_runs(build(tmp_path / "demo", ["ddp", "fsdp"]))
    report = compare(runs)
    for uri in (f"http://127.0.0.1:{free_port()}", "http://mlflow.invalid:5000"):
        said = log_for_user(report, runs, tmp_path, None, uri, None)
        assert said.startswith(NOT_THERE) and find_codes(said) == ["SL-report-server-away"] and uri in said
        assert ("--mlflow" in said) is ("127" in uri), "a rehearsal's server ends with it"
    with pytest.raises(UserError) as refused:
        log_for_user(report, runs, tmp_path, None, "", tmp_path)
    assert find_codes(refused.value) == ["SL-mlflow-no-store"]
    write_json(tmp_path / "demo" / "ddp" / "mlflow.json", {"tracking_uri": "https://mlflow:5000"})
    said = log_for_user(report, load_runs(tmp_path / "demo"), tmp_path, None, "", None)
    assert find_codes(said) == ["SL-report-several-servers"]
    for run in runs:
        (run.folder / "mlflow.json").unlink()
    assert log_for_user(report, load_runs(tmp_path / "demo"), tmp_path, None, "", None) == ""


def test_a_server_elsewhere_and_an_experiment_that_is_not_there_are_named(mlflow_server: str) -> None:
    with run_redirect(mlflow_server) as uri, pytest.raises(NotLogged) as moved:
        log_comparison({}, Path(), uri, "nobody")
    assert find_codes(moved.value) == ["SL-report-redirect"] and mlflow_server in str(moved.value)
    with pytest.raises(NotLogged) as absent:
        log_comparison({}, Path(), mlflow_server, "nobody")
    assert find_codes(absent.value) == ["SL-report-no-experiment"]
