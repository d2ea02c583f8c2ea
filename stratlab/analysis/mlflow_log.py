"""Puts an analysis, and the run's own files, into the run's MLflow run.

Everything is on disk before; a server that is away costs seconds and a warning. The time stamp of the
metrics is the run's own start, so that a second analysis writes the same points and not new ones.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUN_FILES = ("config.json", "summary.json", "evaluation.json", "metrics.jsonl", "attempts.jsonl")
RUN_FOLDERS = {"ranks": "rank*.json", "traces": "manifest.json"}
IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # else 246 s per call
    "MLFLOW_DISABLE_TELEMETRY": "true",  # its thread changes os.environ in the middle of a request (3.17.2)
}
PREFIX = "trace/"


def log_analysis(run_dir: Path, report: dict[str, Any], tracking_uri: str | None) -> dict[str, str]:
    """Logs `<run>/analysis` and the run's files to the run that mlflow.json names.

    Returns:
        status: `logged`, `unreachable` (no answer), `failed` (an answer, but an error) or `not configured`;
            reason.
    """
    if not tracking_uri:
        return {"status": "not configured", "reason": "no tracking URI given"}
    run_id = _read_run_id(run_dir / "mlflow.json")
    if not run_id:
        return {"status": "not configured", "reason": "mlflow.json names no run"}
    with _impatience():
        from mlflow.exceptions import MlflowException, RestException  # 3 s: only who logs pays

        try:
            _log(run_dir, report, tracking_uri, run_id)
        except RestException as failure:
            return {"status": "failed", "reason": f"{tracking_uri}: {failure.message[:500]}"}
        except (MlflowException, OSError) as failure:
            return {"status": "unreachable", "reason": f"{tracking_uri}: {str(failure)[:500]}"}
        except Exception as failure:  # a store behind the server may need a package that is not here
            return {
                "status": "failed",
                "reason": f"{tracking_uri}: {type(failure).__name__}: {str(failure)[:500]}",
            }
    return {"status": "logged", "reason": ""}


def _log(run_dir: Path, report: dict[str, Any], tracking_uri: str, run_id: str) -> None:
    from mlflow.entities import Metric, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    start_ms = client.get_run(run_id).info.start_time
    numbers = {name: value for name, value in report["mean"].items() if isinstance(value, int | float)}
    metrics = [Metric(PREFIX + name, float(value), start_ms, 0) for name, value in numbers.items()]
    client.log_batch(run_id, metrics=metrics, tags=[RunTag("trace_source", report["source"])])
    for name in RUN_FILES:
        if (run_dir / name).is_file():
            client.log_artifact(run_id, str(run_dir / name), "run")
    for folder, pattern in RUN_FOLDERS.items():
        for path in sorted((run_dir / folder).glob(pattern)):
            client.log_artifact(run_id, str(path), f"run/{folder}")
    analysis = run_dir / "analysis"
    client.log_artifacts(run_id, str(analysis / "tables"), "analysis/tables")
    client.log_artifact(run_id, str(analysis / "report.html"), "analysis")
    with tempfile.TemporaryDirectory() as folder:  # the copy says that it was logged; it is the last one
        copy = Path(folder) / "report.json"
        copy.write_text(json.dumps(report | {"mlflow": {"status": "logged", "reason": ""}}, indent=1))
        client.log_artifact(run_id, str(copy), "analysis")


def _read_run_id(path: Path) -> str | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    run_id = content.get("run_id") if isinstance(content, dict) else None
    return run_id if isinstance(run_id, str) else None


@contextmanager
def _impatience() -> Iterator[None]:
    """Short waits, unless the user has chosen others."""
    added = {name: value for name, value in IMPATIENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
