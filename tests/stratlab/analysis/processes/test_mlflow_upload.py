"""The analysis and the run's files in MLflow, and what happens when MLflow is not there."""

import json
import os
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from stratlab.analysis.run_analysis import analyze_run
from stratlab.analysis.tables import SCHEMA
from stratlab.machine import free_port
from tests.codes import find_codes
from tests.stratlab.analysis.conftest import NO_HTA
from tests.stratlab.simulated.small import build_gpu_trace, write_run


def build_run(folder, run_id):
    run = write_run(folder / "run", {0: build_gpu_trace(0), 1: build_gpu_trace(1)})
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 1.0}\n')
    (run / "attempts.jsonl").write_text('{"attempt": 1, "event": "started"}\n')
    (run / "summary.json").write_text('{"run": "run"}')
    (run / "ranks").mkdir()
    (run / "ranks" / "rank0.json").write_text('{"rank": 0}')
    (run / "ranks" / "rank0.log").write_text("not an artifact")
    if run_id:
        (run / "mlflow.json").write_text(json.dumps({"run_id": run_id}))
    return run


def start(server):
    client = MlflowClient(server)
    return client, client.create_run("0").info.run_id


def log(run, uri):
    said = []
    report = analyze_run(run, tracking_uri=uri, progress=said.append, hta_limits=NO_HTA)
    assert json.loads((run / "analysis" / "report.json").read_text()) == json.loads(json.dumps(report))
    codes = find_codes(said)
    return report, [code for code in codes if code == "SL-analysis-not-logged"]


def artifacts(client, run_id, folder=""):
    found = set()
    for entry in client.list_artifacts(run_id, folder or None):
        found |= artifacts(client, run_id, entry.path) if entry.is_dir else {entry.path}
    return found


def test_analysis_is_logged_once(mlflow_server, tmp_path):
    client, run_id = start(mlflow_server)
    run = build_run(tmp_path, run_id)
    report, warnings = log(run, mlflow_server)
    assert (report["mlflow"], warnings) == ({"status": "logged", "reason": ""}, [])
    pages = ("report.json", "summary.md", "merged_trace.json.gz", "tables/schema.json")
    files = ("config.json", "summary.json", "metrics.jsonl", "attempts.jsonl", "ranks/rank0.json")
    assert artifacts(client, run_id) == {
        "report.html",
        *(f"analysis/{name}" for name in (*pages, *(f"tables/{name}.csv" for name in SCHEMA))),
        *(f"run/{name}" for name in (*files, "traces/manifest.json")),
    }
    copy = Path(client.download_artifacts(run_id, "analysis/report.json", str(tmp_path)))
    assert json.loads(copy.read_text()) == json.loads(json.dumps(report))
    data = client.get_run(run_id).data
    assert data.metrics["detail/trace/compute_pct"] == pytest.approx(65)
    parts = {key: value for key, value in data.metrics.items() if key.startswith("detail/trace/part/")}
    assert parts["detail/trace/part/comm/all_reduce_ms"] == pytest.approx(0.1)
    assert sum(parts.values()) == pytest.approx(data.metrics["detail/trace/step_ms"]) == pytest.approx(1)
    assert (data.tags["trace_source"], data.tags["trace_main_part"]) == ("gpu", "compute")
    assert f"/runs/{run_id}/artifacts/report.html" in data.tags["mlflow.note.content"]
    client.set_tag(run_id, "mlflow.note.content", "mine")
    log(run, mlflow_server)  # again: the same points
    assert client.get_run(run_id).data.tags["mlflow.note.content"] == "mine"
    for name in data.metrics:
        (point,) = client.get_metric_history(run_id, name)
        assert (point.timestamp, point.step) == (client.get_run(run_id).info.start_time, 0)


def test_unknown_run_is_a_failure_with_its_reason(mlflow_server, tmp_path):
    report, warnings = log(build_run(tmp_path, "0" * 32), mlflow_server)
    assert report["mlflow"]["status"] == "failed" and "0" * 32 in report["mlflow"]["reason"]
    assert len(warnings) == 1


def test_unreachable_server_costs_seconds_and_no_report(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    uri, run, began = f"http://127.0.0.1:{free_port()}", build_run(tmp_path, "0" * 32), time.monotonic()
    report, warnings = log(run, uri)
    assert time.monotonic() - began < 30
    assert report["mlflow"]["status"] == "unreachable" and uri in report["mlflow"]["reason"]
    assert len(warnings) == 1 and (run / "analysis" / "report.html").is_file()
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_run_without_mlflow_is_not_configured(tmp_path):
    run = build_run(tmp_path, None)
    assert find_codes(log(run, None)[0]["mlflow"]["reason"]) == ["SL-mlflow-no-address"]
    for content in (None, "{", "[]", "{}"):
        if content is not None:
            (run / "mlflow.json").write_text(content)
        report, warnings = log(run, "http://127.0.0.1:1")
        assert report["mlflow"]["status"] == "not configured" and warnings == []
        assert find_codes(report["mlflow"]["reason"]) == ["SL-mlflow-no-run-id"]
