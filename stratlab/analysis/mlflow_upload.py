"""Upload an analysis, and the run's own files, to the run's MLflow run.

Everything is on disk before; an unreachable server takes some seconds and prints a warning. The time stamp of the
metrics is the run's own start, so that a second analysis writes the same points and not new ones.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from stratlab import tracking as redirect
from stratlab.analysis.advice_rules import DOUBTS
from stratlab.analysis.summaries import say_headline, sum_named_parts
from stratlab.drawing import drop_file_links
from stratlab.run_directory.files import PAGE, read_object
from stratlab.run_directory.outcome import has_ended, read_attempts
from stratlab.tracking import IMPATIENT, TRACE, build_artifact_place, environment, impatient, read_run_id
from stratlab_spec.run_directory import NOTE, build_note, describe_run, may_describe
from stratlab_spec.step_parts import COMPUTE

RUN_FILES = ("config.json", "summary.json", "evaluation.json", "metrics.jsonl", "attempts.jsonl")
RUN_FOLDERS = {"ranks": "rank*.json", "traces": "manifest.json"}
NOT_OF_A_KEY = re.compile(r"[^\w\-. ]")
MERGED_BYTES = (
    200 << 20
)  # larger merged traces stay on the volume: MLflow's viewer only offers them for download
UPLOAD_TIMEOUT_S = "300"  # of the merged trace: the server answers when it has stored it
LONGEST_TAG = 200


def log_analysis(run_dir: Path, report: dict[str, Any], tracking_uri: str | None) -> dict[str, str]:
    """Log `<run>/analysis` and the run's files to the run that mlflow.json names.

    Returns:
        status: `logged`, `unreachable` (no answer), `failed` (an answer, but an error) or `not configured`; reason,
            also for files left out of an upload.
    """
    if not tracking_uri:
        return {"status": "not configured", "reason": "no tracking URI given [SL-mlflow-no-address]"}
    run_id = read_run_id(run_dir / "mlflow.json")
    if not run_id:
        return {"status": "not configured", "reason": "mlflow.json names no run [SL-mlflow-no-run-id]"}
    with impatient():
        from mlflow.exceptions import MlflowException, RestException  # 3 s: only who logs pays

        try:
            left_out = _log(run_dir, report, tracking_uri, run_id)
        except RestException as failure:
            return {"status": "failed", "reason": f"{tracking_uri}: {failure.message[:500]}"}
        except (MlflowException, OSError) as failure:
            text = redirect.explain_failure(tracking_uri, str(failure))
            return {"status": "unreachable", "reason": f"{tracking_uri}: {text[:500]}"}
        except Exception as failure:  # the server's store may need a package that is missing here
            return {
                "status": "failed",
                "reason": f"{tracking_uri}: {type(failure).__name__}: {str(failure)[:500]}",
            }
    return {"status": "logged", "reason": left_out}


def _log(run_dir: Path, report: dict[str, Any], tracking_uri: str, run_id: str) -> str:
    """Log everything except files that are too large; return a text that names them."""
    from mlflow.entities import Metric, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    run = client.get_run(run_id)
    start_ms = run.info.start_time
    numbers = build_numbers(report)
    metrics = [Metric(TRACE + name, float(value), start_ms, 0) for name, value in numbers.items()]
    tags = build_tags(report)
    if may_describe(run.data.tags.get(NOTE)):
        page = build_artifact_place(run.info.experiment_id, run_id, PAGE)
        tags[NOTE] = build_description(run_dir, report, page)
    client.log_batch(run_id, metrics=metrics, tags=[RunTag(*tag) for tag in tags.items()])
    for name in RUN_FILES:
        if (run_dir / name).is_file():
            client.log_artifact(run_id, str(run_dir / name), "run")
    for folder, pattern in RUN_FOLDERS.items():
        for path in sorted((run_dir / folder).glob(pattern)):
            client.log_artifact(run_id, str(path), f"run/{folder}")
    analysis = run_dir / "analysis"
    client.log_artifacts(run_id, str(analysis / "tables"), "analysis/tables")
    page = (analysis / PAGE).read_text(encoding="utf-8")
    client.log_text(run_id, drop_file_links(page), PAGE)  # MLflow has no files next to it
    client.log_artifact(run_id, str(analysis / "summary.md"), "analysis")
    left_out = _log_merged(client, run_id, analysis, report)
    with tempfile.TemporaryDirectory() as folder:  # the copy records that it was logged; it is the last one
        copy = Path(folder) / "report.json"
        status = {"mlflow": {"status": "logged", "reason": left_out}}
        copy.write_text(json.dumps(report | status, indent=1))
        client.log_artifact(run_id, str(copy), "analysis")
    return left_out


def build_numbers(report: dict[str, Any]) -> dict[str, float]:
    """Return metric, without TRACE -> value: the means, each part of the step, and numbers of findings."""
    means = {
        n: v for n, v in report["mean"].items() if isinstance(v, int | float) and not isinstance(v, bool)
    }
    parts: dict[str, float] = {}
    for part in report.get("parts") or []:
        collective = NOT_OF_A_KEY.sub("_", part["collective"]) if part["collective"] else ""
        name = f"part/{part['part']}{'/' if collective else ''}{collective}_ms"
        parts[name] = parts.get(name, 0.0) + (part["ms"] or 0.0)
    foreseen: dict[str, float] = {}
    if (forecast := report.get("forecast") or {}).get("error_pct") is not None:
        foreseen["forecast/step_error_pct"] = forecast["error_pct"]
        foreseen |= {f"forecast/{part['part']}_ms": part["ms"] for part in forecast["parts"]}
    counts = {"findings": len(report["quality"]), "recommendations": len(report.get("recommendations") or [])}
    return means | parts | foreseen | counts


def build_description(run_dir: Path, report: dict[str, Any], page: str) -> str:
    """Return the beginning of MLflow's overview of the run: its end, its page, the parts of its step, the first advice.

    MLflow shows the first lines until a reader expands it.
    """
    attempts = read_attempts(run_dir)
    advice = [each for each in report.get("recommendations") or [] if each["rule"] != DOUBTS]
    link = f"[The run's page]({page})"
    if has_ended(attempts):
        link = f"{describe_run(attempts[-1], read_object(run_dir / 'summary.json', []))}. {link}"
    lines = [link, *[say_headline(report)] * bool(report["source"])]
    return build_note("\n\n".join([*lines, *(f"First advice: {each['title']}" for each in advice[:1])]))


def build_tags(report: dict[str, Any]) -> dict[str, str]:
    """Return tags for MLflow's table of runs: the origin of the numbers, and the answer in short."""
    parts, advice = sum_named_parts(report), report.get("recommendations") or []
    losses = {name: ms for name, ms in parts.items() if name != COMPUTE}
    largest = {"trace_main_part": next(iter(parts), ""), "trace_main_loss": next(iter(losses), "")}
    first = {"trace_top_recommendation": f"{advice[0]['rule']}: {advice[0]['title']}"} if advice else {}
    found = {
        "trace_source": report["source"] or "none",
        **largest,
        "trace_top_recommendation": "none",
        **first,
    }
    if layout := report["run"].get("layout"):
        lacks = ", ".join(layout["missing"] or []) or "yes"
        found |= {"layout": str(layout["name"]), "degenerate": lacks if layout["degenerate"] else "no"}
    return {
        name: text if len(text) <= LONGEST_TAG else f"{text[: LONGEST_TAG - 1]}…"
        for name, text in found.items()
    }


def _log_merged(client: Any, run_id: str, analysis: Path, report: dict[str, Any]) -> str:
    """Upload the merged trace with the client's usual retries, because the server has answered. A failure loses
    only it.
    """
    from mlflow.exceptions import MlflowException

    name = (report.get("merged") or {}).get("file")
    if not name or not (analysis / name).is_file():
        return ""
    size = (analysis / name).stat().st_size
    if size > MERGED_BYTES:
        return (
            f"{name} is not uploaded: {size >> 20} MiB, above {MERGED_BYTES >> 20} MiB; it is in the run directory "
            "[SL-merged-too-large]"
        )
    impatient = os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == IMPATIENT["MLFLOW_HTTP_REQUEST_TIMEOUT"]
    with environment({"MLFLOW_HTTP_REQUEST_TIMEOUT": UPLOAD_TIMEOUT_S} if impatient else {}):
        try:
            client.log_artifact(run_id, str(analysis / name), "analysis")
        except (MlflowException, OSError) as failure:
            return f"{name} is not uploaded: {str(failure)[:200]} [SL-merged-not-uploaded]"
    return ""
