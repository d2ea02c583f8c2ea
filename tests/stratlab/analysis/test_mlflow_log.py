"""The analysis and the run's files in MLflow, and what happens when MLflow is not there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from stratlab.analysis.analyze import analyze_run
from stratlab.analysis.hta.bridge import HtaLimits
from tests.ranks import free_port
from tests.stratlab.simulated.small import build_cpu_trace, build_gpu_trace, write_run


def build_run(folder: Path, run_id: str | None) -> Path:
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


def log(run: Path, uri: str | None) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    report = analyze_run(run, tracking_uri=uri, progress=said.append, hta_limits=HtaLimits(raw_bytes=0))
    assert json.loads((run / "analysis" / "report.json").read_text()) == json.loads(json.dumps(report))
    return report, [sentence for sentence in said if "MLflow" in sentence]


def artifacts(client: MlflowClient, run_id: str, folder: str = "") -> set[str]:
    found: set[str] = set()
    for entry in client.list_artifacts(run_id, folder or None):
        found |= artifacts(client, run_id, entry.path) if entry.is_dir else {entry.path}
    return found


def test_analysis_is_logged_once(mlflow_server: str, tmp_path: Path) -> None:
    client = MlflowClient(mlflow_server)
    run_id = client.create_run(client.create_experiment("analysis")).info.run_id
    run = build_run(tmp_path, run_id)
    report, warnings = log(run, mlflow_server)
    assert (report["mlflow"], warnings) == ({"status": "logged", "reason": ""}, [])
    assert artifacts(client, run_id) == {
        "analysis/report.html",
        "analysis/report.json",
        *(f"analysis/tables/{name}.csv" for name in ("steps", "ranks", "collectives", "hta")),
        *(f"run/{name}" for name in ("config.json", "summary.json", "metrics.jsonl", "attempts.jsonl")),
        "run/ranks/rank0.json",
        "run/traces/manifest.json",
    }
    copy = json.loads(
        Path(client.download_artifacts(run_id, "analysis/report.json", str(tmp_path))).read_text()
    )
    assert copy == json.loads(json.dumps(report))
    data = client.get_run(run_id).data
    assert data.metrics["trace/compute_pct"] == pytest.approx(65)
    assert data.metrics["trace/step_ms"] == pytest.approx(1)
    assert data.tags["trace_source"] == "gpu"

    log(run, mlflow_server)  # again: the same points
    assert len(client.get_metric_history(run_id, "trace/step_ms")) == 1


def test_source_of_the_numbers_is_a_tag(mlflow_server: str, tmp_path: Path) -> None:
    client = MlflowClient(mlflow_server)
    run_id = client.create_run(client.create_experiment("host time")).info.run_id
    run = write_run(tmp_path / "run", {0: build_cpu_trace(0)}, device_type="cpu")
    (run / "mlflow.json").write_text(json.dumps({"run_id": run_id}))
    log(run, mlflow_server)
    assert client.get_run(run_id).data.tags["trace_source"] == "cpu"


def test_unknown_run_is_a_failure_with_its_reason(mlflow_server: str, tmp_path: Path) -> None:
    report, warnings = log(build_run(tmp_path, "0" * 32), mlflow_server)
    assert report["mlflow"]["status"] == "failed" and "not found" in report["mlflow"]["reason"]
    assert len(warnings) == 1


def test_unreachable_server_costs_seconds_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    uri, run, began = f"http://127.0.0.1:{free_port()}", build_run(tmp_path, "0" * 32), time.monotonic()
    report, warnings = log(run, uri)
    assert time.monotonic() - began < 30
    assert report["mlflow"]["status"] == "unreachable" and uri in report["mlflow"]["reason"]
    assert warnings[0].startswith("warning: not logged to MLflow, the report is in ")
    assert (run / "analysis" / "report.html").is_file()
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_run_without_mlflow_is_not_configured(tmp_path: Path, content: str | None) -> None:
    run = build_run(tmp_path, None)
    if content is not None:
        (run / "mlflow.json").write_text(content)
    report, warnings = log(run, "http://127.0.0.1:1")
    assert report["mlflow"] == {"status": "not configured", "reason": "mlflow.json names no run"}
    assert warnings == []
    assert log(run, None)[0]["mlflow"] == {"status": "not configured", "reason": "no tracking URI given"}
