"""The analysis and the run's files in MLflow, and what happens when MLflow is not there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from stratlab.analysis import mlflow_upload
from stratlab.analysis.analyze import analyze_run
from stratlab.analysis.hta.bridge import HtaLimits
from stratlab.analysis.mlflow_upload import build_numbers, build_tags
from stratlab.analysis.reporting.table_schema import SCHEMA
from stratlab.machine.processes import free_port
from tests.redirecting_server import run_redirect
from tests.stratlab.analysis.example_report import blank, build_example
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
    report = analyze_run(run, tracking_uri=uri, progress=said.append, hta_limits=HtaLimits(memory_bytes=0))
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
        *(
            f"analysis/{name}"
            for name in ("report.html", "report.json", "summary.md", "merged_trace.json.gz")
        ),
        "analysis/tables/schema.json",
        *(f"analysis/tables/{name}.csv" for name in SCHEMA),
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
    parts = {key: value for key, value in data.metrics.items() if key.startswith("trace/part/")}
    assert parts["trace/part/compute_ms"] == pytest.approx(0.65)
    assert parts["trace/part/comm/all_reduce_ms"] == pytest.approx(0.1)
    assert sum(parts.values()) == pytest.approx(data.metrics["trace/step_ms"])
    assert data.metrics["trace/recommendations"] == len(report["recommendations"])
    assert (data.tags["trace_source"], data.tags["trace_main_part"]) == ("gpu", "compute")
    assert data.tags["trace_top_recommendation"].startswith(("none", "R"))

    log(run, mlflow_server)  # again: the same points
    for name in data.metrics:
        (point,) = client.get_metric_history(run_id, name)
        assert (point.timestamp, point.step) == (client.get_run(run_id).info.start_time, 0)


def test_source_of_the_numbers_is_a_tag(mlflow_server: str, tmp_path: Path) -> None:
    client = MlflowClient(mlflow_server)
    run_id = client.create_run(client.create_experiment("host time")).info.run_id
    run = write_run(tmp_path / "run", {0: build_cpu_trace(0)}, device_type="cpu")
    (run / "mlflow.json").write_text(json.dumps({"run_id": run_id}))
    log(run, mlflow_server)
    assert client.get_run(run_id).data.tags["trace_source"] == "cpu"


def test_a_redirect_is_not_followed_and_the_right_address_is_named(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_HTTP_REDIRECTS", raising=False)
    client = MlflowClient(mlflow_server)
    run_id = client.create_run(client.create_experiment("redirected")).info.run_id
    with run_redirect(mlflow_server) as uri:
        report, (warning,) = log(build_run(tmp_path, run_id), uri)
    wish = f"redirects to {mlflow_server}: set run.mlflow.trackingUri to {mlflow_server}"
    assert report["mlflow"] == {"status": "unreachable", "reason": f"{uri}: {wish}"} and wish in warning
    assert client.get_run(run_id).data.metrics == {}


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


def test_numbers_and_tags_of_a_report() -> None:
    report = build_example()
    report["parts"] += [
        {"part": "comm", "collective": "all_gather", "axis": axis, "ms": 1.5} for axis in ("dp_shard", "tp")
    ]
    report["parts"].append({"part": "comm", "collective": "odd name(1)?", "axis": None, "ms": 0.5})
    report["quality"] = [{"action": "noted", "reason": "x", "file": "f", "rank": 0}] * 3
    numbers = build_numbers(report)
    assert (numbers["part/comm/all_gather_ms"], numbers["part/comm/all_reduce_ms"]) == (3.0, 12.0)
    assert numbers["part/comm/odd name_1___ms"] == 0.5 and numbers["part/host_ms"] == 9.0
    assert (numbers["findings"], numbers["recommendations"]) == (3, 0)
    assert numbers["comm_bytes_per_step"] == 818_216 and "d2h_gbps" not in numbers
    assert set(build_numbers(blank(report, keep=()))) >= {"findings", "recommendations"}
    assert build_tags(report) == {
        "trace_source": "gpu",
        "trace_main_part": "compute",
        "trace_main_loss": "communication",
        "trace_top_recommendation": "none",
    }
    report["recommendations"] = [{"rule": "R3", "title": "x" * 500}]
    advice = build_tags(report)["trace_top_recommendation"]
    assert advice.startswith("R3: xxx") and len(advice) == 200
    assert build_tags(build_example("cpu"))["trace_main_loss"] == "waiting for the host"


def test_tags_name_the_layout_and_what_it_lacks() -> None:
    report = build_example()
    report["run"]["layout"] = {"name": "pp2.dp2.tp2+sp", "missing": [], "degenerate": False}
    assert (build_tags(report)["layout"], build_tags(report)["degenerate"]) == ("pp2.dp2.tp2+sp", "no")
    report["run"]["layout"] = {"name": "pp2", "missing": ["data", "tensor"], "degenerate": True}
    assert build_tags(report)["degenerate"] == "data, tensor"


def test_a_large_merged_trace_stays_on_the_volume(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_upload, "MERGED_BYTES", 100)
    client = MlflowClient(mlflow_server)
    run_id = client.create_run(client.create_experiment("large")).info.run_id
    report, _ = log(build_run(tmp_path, run_id), mlflow_server)
    assert report["mlflow"]["status"] == "logged"
    assert report["mlflow"]["reason"].startswith("merged_trace.json.gz is not uploaded: 0 MiB, above 0 MiB")
    names = artifacts(client, run_id)
    assert "analysis/merged_trace.json.gz" not in names and "analysis/report.html" in names


def test_a_merged_trace_that_cannot_be_uploaded_costs_nothing_else(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses this file alone; it is given more time than the others."""
    real, patience = MlflowClient.log_artifact, {}

    def refuse(self: MlflowClient, run_id: str, path: str, folder: str | None = None) -> None:
        patience[Path(path).name] = os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
        if path.endswith(".gz"):
            raise OSError("connection reset")
        real(self, run_id, path, folder)

    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monkeypatch.setattr(MlflowClient, "log_artifact", refuse)
    client = MlflowClient(mlflow_server)
    run_id = client.create_run(client.create_experiment("refused")).info.run_id
    report, warnings = log(build_run(tmp_path, run_id), mlflow_server)
    reason = "merged_trace.json.gz is not uploaded: connection reset"
    assert report["mlflow"] == {"status": "logged", "reason": reason} and warnings == []
    assert {"analysis/report.html", "analysis/report.json"} < artifacts(client, run_id)
    assert (patience["merged_trace.json.gz"], patience["report.html"]) == ("300", "10")
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ
