"""What the runs of a comparison tell, each by itself and by where and when it was at work.

Where warming up ends: a published rule, so that nobody picks the steps that suit him.

The step times of a run: one number of each kind for the whole comparison, with where it comes from.

One row per run: identity, the numbers of the summary, of the steps and of the traces, and what is missing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratlab.compare.placement import build_layout
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import TRACED, RunRecord

BATCH = 5
TRAINERS_OWN = 5  # steps that the trainer itself never times (trainer/metrics/tracking.py)
RULE = "MSER-5 (White 1997), never less than the first 5 steps, never more than half"
TOO_FEW = "too few steps for MSER-5: the first 5 left out"


@dataclass(frozen=True)
class Cut:
    """`steps` of the beginning do not count. `settled`: the rule found its optimum before its limit."""

    steps: int
    method: str
    settled: bool


def find_cut(times_ms: Sequence[float]) -> Cut:
    """How many of the first steps are warming up.

    MSER-5: K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69
    (1997); batches of 5: White, Cobb, Spratt 2000. Of the batch means Z of 5 steps each, the first d are dropped where
    sum((Z - mean)^2) / (m - d)^2 over the rest is smallest: the marginal standard error of the mean.

    Args:
        times_ms: step times in order, without the profiled ones.
    """
    whole = len(times_ms) // BATCH
    most = whole // 2
    least = TRAINERS_OWN // BATCH
    if most < max(least + 1, 2):
        return Cut(min(TRAINERS_OWN, len(times_ms)), TOO_FEW, False)
    # counted from the end: what does not fill a batch is at the beginning, where it is dropped anyway
    start = len(times_ms) - whole * BATCH
    means = np.asarray(times_ms[start:], float).reshape(whole, BATCH).mean(axis=1)
    dropped = range(least, most + 1)
    errors = [float(np.var(means[d:])) / (whole - d) for d in dropped]
    best = dropped[int(np.argmin(errors))]
    steps = min(start + best * BATCH, len(times_ms) // 2)
    return Cut(steps, RULE, best < most or float(np.ptp(means[least:])) == 0)


PHASE_TIMES = ("data_ms", "forward_ms", "backward_ms", "optimizer_ms")
FROM_SUMMARY = (
    *("samples_per_s", "step_time_ms_p50", "step_time_ms_p95", "measured_steps", "mfu_pct"),
    *("tokens_per_s", "useful_tokens_per_s", "useful_tokens_pct"),  # of text
    *("mfu_literature_pct", "mfu_useful_pct"),
    *(f"{name}_p50" for name in PHASE_TIMES),
)


def build_step_times(run: RunRecord) -> dict[str, Any]:
    """Throughput and times of the steps behind the warm-up; of summary.json where metrics.jsonl has none.

    Throughput is what a step of the median time does on the average: of two runs with equal steps the one with the
    shorter median step is the faster one in every number and sentence. (That of summary.json is over the mean time.)

    Returns:
        the names of FROM_SUMMARY, step_time_ms_mean, step_times_from (metrics.jsonl | summary.json | None) and warmup:
        {steps: left out at the beginning, first_step: that counts, method, settled}, None from a summary.
    """
    lines = _undisturbed(run)
    times = [line["step_time_ms"] for line in lines]
    cut = find_cut(times)
    kept, counted = lines[cut.steps :], times[cut.steps :]
    if not counted or run.status != "finished":
        found = {name: run.summary.get(name) for name in FROM_SUMMARY}
        return {
            **found,
            "step_time_ms_mean": None,
            "step_times_from": "summary.json" if found["step_time_ms_p50"] is not None else None,
            "warmup": None,
        }
    step_ms = statistics.median(counted)
    seconds = len(counted) * step_ms / 1e3
    samples, tokens, useful = (_sum(kept, name) for name in ("samples", "tokens", "useful_tokens"))
    samples_per_s, tokens_per_s = _divide(samples, seconds), _divide(tokens, seconds)
    useful_per_s, useful_share = _divide(useful, seconds), _divide(useful, tokens)
    return {
        "samples_per_s": samples_per_s,
        "tokens_per_s": tokens_per_s,
        "useful_tokens_per_s": useful_per_s,
        "useful_tokens_pct": None if useful_share is None else 100 * useful_share,
        "step_time_ms_p50": step_ms,
        "step_time_ms_p95": find_quantile(counted, 0.95),
        "step_time_ms_mean": statistics.fmean(counted),
        "measured_steps": len(counted),
        "mfu_pct": _mfu_pct(run.summary, samples_per_s, "flops_per_sample"),
        "mfu_literature_pct": _mfu_pct(run.summary, tokens_per_s, "flops_per_token_literature"),
        "mfu_useful_pct": _mfu_pct(run.summary, useful_per_s, "flops_per_useful_token"),
        **{f"{name}_p50": _median([line.get(name) for line in kept]) for name in PHASE_TIMES},
        "step_times_from": "metrics.jsonl",
        "warmup": {
            "steps": cut.steps,
            "first_step": kept[0]["step"],
            "method": cut.method,
            "settled": cut.settled,
        },
    }


def find_quantile(values: Sequence[float], share: float) -> float:
    """The value at this share of the ordered ones, as the trainer finds its p95."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def _undisturbed(run: RunRecord) -> list[dict[str, Any]]:
    """Training steps in order, without the profiled ones and the one after them, which writes the traces."""
    newest = {
        line["step"]: line
        for line in run.metrics
        if line.get("kind") == "train" and is_number(line.get("step")) and is_number(line.get("step_time_ms"))
    }
    profiled = {step for step, line in newest.items() if line.get("profiled")}
    return [newest[s] for s in sorted(newest) if s not in profiled and s - 1 not in profiled]


def _mfu_pct(summary: dict[str, Any], units_per_s: float | None, cost: str) -> float | None:
    """Model FLOP utilisation as the trainer defines it (PaLM, arXiv 2204.02311, appendix B).

    Args:
        units_per_s: samples, or tokens.
        cost: the field of the summary that says what one of them costs.
    """
    flops, peak, ranks = (summary.get(name) for name in (cost, "peak_flops_per_device", "world_size"))
    if not (units_per_s and is_number(flops) and is_number(peak) and is_number(ranks) and peak and ranks):
        return None
    return float(100 * units_per_s * flops / (peak * ranks))


def _sum(lines: Sequence[dict[str, Any]], name: str) -> float | None:
    """None where a line does not tell."""
    known = [line[name] for line in lines if is_number(line.get(name))]
    return float(sum(known)) if len(known) == len(lines) else None


def _divide(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _median(values: Sequence[Any]) -> float | None:
    return statistics.median(values) if values and all(is_number(v) for v in values) else None


SUMMARY_FIELDS = (
    *("strategy", "model", "dataset", "seed", "precision", "backend", "device_type", "device_name"),
    *("world_size", "nodes", "dp_replicate", "dp_shard", "steps"),
    *("global_batch_size", "micro_batch_size", "grad_accum_steps"),
    *("train_loss", "validation_loss", "validation_accuracy_pct", "test_loss", "test_accuracy_pct"),
    *("measured_steps", "samples_per_s", "step_time_ms_p50", "step_time_ms_p95"),
    *("data_ms_p50", "forward_ms_p50", "backward_ms_p50", "optimizer_ms_p50"),
    *("peak_memory_gib", "peak_host_memory_gib"),
    *("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib"),
    *("data_set_memory_gib", "alloc_retries", "peak_memory_step", "peak_memory_phase"),
    *("forecast_memory_gib", "forecast_memory_error_pct", "forecast_memory_deviates"),
    *("peak_reserved_gib", "wire_bytes_per_step", "collectives_per_step"),
    *("train_accuracy_pct", "validation_top5_accuracy_pct", "test_top5_accuracy_pct"),
    *("epoch_time_s", "time_to_target_s", "train_energy_wh", "train_power_w"),
    *("gpu_utilisation_pct", "gpu_temperature_c"),
    *("mfu_pct", "flops_per_sample", "peak_flops_per_device", "parameters", "train_time_s", "skipped_steps"),
    *("not_finite_steps", "load_average", "other_cpu_pct"),
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
    *("data_wait_pct", "host_wait_pct", "kernel_wait_pct", "other_idle_pct", "straggler_pct", "slowest_rank"),
    *("bubble_pct", "bubble_ideal_pct", "compute_imbalance", "kernels_per_step", "kernel_us_p50"),
    *("short_kernel_pct", "h2d_gbps", "d2h_gbps", "d2d_gbps", "comm_bytes_per_step", "allocations_per_step"),
)
TEXT_FIELDS = ("validation_perplexity", "test_perplexity")  # None for images, as accuracies are for text
AXES = ("cp", "tp", "pp", "ep")  # beside those of data parallelism; 1 where a run does not have one
SCALING_FIELDS = ("speedup", "scaling_efficiency_pct", "speedup_vs_single", "efficiency_vs_single_pct")
PHASES = ("data", "forward", "backward", "optimizer")


def build_row(run: RunRecord, way: str = "") -> dict[str, Any]:
    """One row: identity, the summary's numbers, the traces' numbers, the layout, and what is missing.

    Args:
        way: how it was carried out, where that is varied (`judging.varied.name_way`).
    """
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
        "task": None if run.is_foreign else "text" if run.is_text else "image",
        **{name: run.summary.get(name) for name in (*SUMMARY_FIELDS, *TEXT_FIELDS)},
        **build_layout(run),
        **{name: _axes(run).get(name, 1) for name in AXES},
        **build_step_times(run),
        "strategy": run.strategy,
        "way": way,
        "torch": ((run.config.get("provenance") or {}).get("versions") or {}).get("torch"),
        "state_memory_gib": None if None in state else sum(value for value in state if value is not None),
        "trace_source": run.analysis.get("source"),
        "trace_steps": trace.get("steps"),
        "trace_steps_from": run.analysis.get("steps_from"),
        **{name: trace.get(name) for name in TRACE_FIELDS},
        "comm_exposed_pct": trace.get("comm_exposed_pct", run.summary.get("comm_exposed_pct")),
        "trace_findings": len(run.analysis["quality"]) if "quality" in run.analysis else None,
        "hta": [entry for entry in run.analysis.get("hta") or [] if isinstance(entry, dict)],
        "phases_present": _phases(run.analysis.get("phases_present") or {}),
    }


def is_compared(row: Mapping[str, Any]) -> bool:
    """As `RunRecord.is_compared`."""
    return row["status"] in ("finished", TRACED) and not row["degenerate"]


def find_recorded_step_ms(row: Mapping[str, Any]) -> float | None:
    """The mean of the recorded steps; None where no label tells the steps."""
    return None if row["trace_steps_from"] in (None, "recording") else row["step_ms"]


def name_variant(row: Mapping[str, Any]) -> str:
    """Equal for runs of the same strategy on the same axes, carried out in the same way where that is varied; what is
    known by its traces alone is equal to nothing."""
    if row["status"] == TRACED:
        return str(row["run"])
    axes = [f"{name}={row[name]}" for name in ("dp_replicate", "dp_shard", *AXES)]
    kinds = [str(row[name]) for name in ("layout", "pp_schedule", "cp_kind") if row[name]]
    return " ".join([str(row["strategy"]), *axes, *kinds, str(row["way"])])


def _axes(run: RunRecord) -> Mapping[str, Any]:
    return (run.config.get("resolved") or {}).get("axes") or {}


def apply_others(
    row: dict[str, Any],
    noise: Mapping[str, Any],
    scaling: Sequence[Mapping[str, Any]],
    sharding: Sequence[Mapping[str, Any]],
    attribution: Mapping[str, Any],
) -> dict[str, Any]:
    """The row with what only the other runs tell: noise, scaling, the step of its baseline; and how well it shards."""
    points = [point for series in scaling for point in series["points"] if row["run"] in point["runs"]]
    shards = next((entry for entry in sharding if entry["run"] == row["run"]), None)
    pair = next((p for p in attribution["pairs"] if p["run"] == row["run"] and p["comparable"]), None)
    peak, reserved = row["peak_memory_gib"], row["peak_reserved_gib"]
    return {
        **row,
        "warmup_steps": row["warmup"]["steps"] if row["warmup"] else None,
        "memory_fragmentation_pct": 100 * (reserved - peak) / reserved if peak and reserved else None,
        "noise_ms": noise["noise_ms"].get(row["run"]),
        **{name: _first(points, name) for name in SCALING_FIELDS},
        "sharding_effectiveness_pct": shards["sharding_effectiveness_pct"] if shards else None,
        "baseline": pair["baseline"] if pair else None,
        "speedup_vs_baseline": pair["baseline_ms"] / pair["run_ms"] if pair else None,
        "main_cause": pair["main_cause"] if pair else None,
    }


def _first(points: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Of the first series that knows it: strong scaling comes first."""
    known = [point[name] for point in points if point[name] is not None]
    return known[0] if known else None


def _phases(found: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """{rank: {phase: found in its trace}}, from the phases that each trace holds."""
    return {rank: {phase: phase in present for phase in PHASES} for rank, present in found.items()}
