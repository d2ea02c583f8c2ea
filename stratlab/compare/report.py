"""The content of report.json: what every run measured, whether the runs are comparable, and what follows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.compare.agreement import loss_agreement
from stratlab.compare.fairness import audit
from stratlab.compare.record import RunRecord
from stratlab.compare.winners import ON_CPU, name_group_winners, name_winners

SUMMARY_FIELDS = (
    *("strategy", "model", "dataset", "seed", "precision", "backend", "device_type", "device_name"),
    *("world_size", "nodes", "dp_replicate", "dp_shard", "steps"),
    *("global_batch_size", "micro_batch_size", "grad_accum_steps"),
    *("train_loss", "validation_loss", "validation_accuracy_pct", "test_loss", "test_accuracy_pct"),
    *("measured_steps", "samples_per_s", "step_time_ms_p50", "step_time_ms_p95"),
    *("data_ms_p50", "forward_ms_p50", "backward_ms_p50", "optimizer_ms_p50"),
    *("peak_memory_gib", "peak_host_memory_gib"),
    *("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib"),
    *("mfu_pct", "flops_per_sample", "peak_flops_per_device", "parameters", "train_time_s", "skipped_steps"),
)
STATE_FIELDS = ("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib")
TRACE_FIELDS = (
    *(
        "step_ms",
        "compute_pct",
        "comm_pct",
        "comm_exposed_pct",
        "comm_overlap_pct",
        "copy_exposed_pct",
        "idle_pct",
    ),
    *("data_ms", "forward_ms", "backward_ms", "optimizer_ms"),
)
PHASES = ("data", "forward", "backward", "optimizer")
ORIGIN_FIELDS = ("backend", "device_type", "device_name", "world_size", "nodes", "steps", "measured_steps")


def compare(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Everything that can be said about the runs of a comparison; every value is plain JSON.

    Raises:
        ValueError: there is no run.
    """
    records = [run for run in runs if run.status != "not a run"]
    if not records:
        raise ValueError("no run to compare")
    rows = [_row(run) for run in records]
    fairness = audit(records)
    winners, reasons = name_winners(rows, fairness)
    report = {
        "schema_version": 1,
        "comparison": _names(
            [run.config.get("comparison") or run.summary.get("comparison") for run in records]
        ),
        "origin": _origin(records, rows),
        "runs": rows,
        "not_runs": [
            {"folder": str(run.folder), "why": run.ending} for run in runs if run.status == "not a run"
        ],
        "fairness": fairness,
        "loss_agreement": loss_agreement(records),
        "winners": winners,
        "winner_reasons": reasons,
        "group_winners": name_group_winners(rows, fairness),
        "remarks": _remarks(rows),
    }
    return _plain(report)


def _row(run: RunRecord) -> dict[str, Any]:
    """One flat row: identity, the summary's numbers, the traces' numbers, and what is missing."""
    trace = run.analysis.get("mean") or {}  # over all steps and ranks
    state = [run.summary.get(name) for name in STATE_FIELDS]
    return {
        "run": run.name,
        "run_dir": str(run.folder),
        "status": run.status,
        "ending": run.ending,
        "complete": not run.missing and not run.problems,
        "missing": run.missing,
        "problems": run.problems,
        "attempts": sum(line.get("event") == "started" for line in run.attempts),
        "mlflow_run_id": run.mlflow_run_id,
        **{name: run.summary.get(name) for name in SUMMARY_FIELDS},
        "strategy": run.strategy,
        "state_memory_gib": None if None in state else sum(value for value in state if value is not None),
        "trace_source": run.analysis.get("source"),
        "trace_steps": trace.get("steps"),
        **{name: trace.get(name) for name in TRACE_FIELDS},
        "hta": [entry for entry in run.analysis.get("hta") or [] if isinstance(entry, dict)],
        "phases_present": _phases(run.analysis.get("phases_present") or {}),
    }


def _phases(found: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """{rank: {phase: found in its trace}}, from the phases that each trace holds."""
    return {rank: {phase: phase in present for phase in PHASES} for rank, present in found.items()}


def _origin(runs: Sequence[RunRecord], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the numbers come from. A fact on which the runs differ is the list of its values."""
    finished = [row for row in rows if row["status"] == "finished"]
    facts = {name: _one_or_all([row[name] for row in finished]) for name in ORIGIN_FIELDS}
    versions: dict[str, list[Any]] = {}
    for run in runs:
        for name, version in ((run.config.get("provenance") or {}).get("versions") or {}).items():
            versions.setdefault(name, []).append(version)
    strategies = Counter((row["strategy"], row["dp_replicate"], row["dp_shard"]) for row in finished)
    return {
        "backend": facts["backend"],
        "device": facts["device_type"],
        "hardware": facts["device_name"],
        "world_size": facts["world_size"],
        "nodes": facts["nodes"],
        "steps": facts["steps"],
        "measured_steps": facts["measured_steps"],
        "repeats": min(strategies.values(), default=0),
        "versions": {name: _one_or_all(found) for name, found in sorted(versions.items())},
    }


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    finished = [row for row in rows if row["status"] == "finished"]
    remarks = [ON_CPU] if any(row["device_type"] == "cpu" for row in finished) else []
    for row in rows:
        if row["status"] != "finished":
            remarks.append(f"{row['run']} is {row['status']} and not ranked: {row['ending']}")
        elif row["missing"] or row["problems"]:
            lacks = [*(f"{name} is missing" for name in row["missing"]), *row["problems"]]
            remarks.append(f"{row['run']} is not complete: {', '.join(lacks)}")
    strategies = Counter((row["strategy"], row["dp_replicate"], row["dp_shard"]) for row in finished)
    if strategies and min(strategies.values()) == 1:
        remarks.append("one repeat per strategy: there is no confidence interval")
    return remarks


def _names(values: Sequence[str | None]) -> str:
    found = _one_or_all([value for value in values if value])
    return ", ".join(found) if isinstance(found, list) else found or "unnamed"


def _one_or_all(values: Sequence[Any]) -> Any:
    """The value on which all agree, or the list of the distinct ones in order; None when there is none."""
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    return distinct[0] if len(distinct) == 1 else distinct or None


def _plain(value: Any) -> Any:
    """Without numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
