"""One row per run, from its files to report.json and the pages: its measurements, in the same units for all runs.

build_row          all facts from the files of one run.
apply_others       facts that need the other runs: noise, scaling, the step of its baseline.
read_rows          the rows of a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from stratlab.compare.placement import build_layout
from stratlab.run_directory.outcome import TRACED, is_comparable
from stratlab.run_directory.record import RunRecord, build_numbers

Number = float | None
Text = str | None

PHASES = ("data", "forward", "backward", "optimizer")
AXES = ("cp", "tp", "pp", "ep")
"""Axes other than data parallelism; 1 if a run does not have one."""


@dataclass(kw_only=True)
class SummaryNumbers:
    """Numbers of summary.json, by the names there; None if one is missing. Step times of older runs: record.py."""

    strategy: Text = None
    model: Text = None
    dataset: Text = None
    seed: int | None = None
    precision: Text = None
    backend: Text = None
    device_type: Text = None
    device_name: Text = None
    world_size: int | None = None
    nodes: int | None = None
    dp_replicate: int | None = None
    dp_shard: int | None = None
    steps: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    grad_accum_steps: int | None = None
    train_loss: Number = None
    validation_loss: Number = None
    validation_accuracy_pct: Number = None
    test_loss: Number = None
    test_accuracy_pct: Number = None
    measured_steps: int | None = None
    samples_per_s: Number = None
    step_time_ms_p50: Number = None
    step_time_ms_p95: Number = None
    data_ms_p50: Number = None
    forward_ms_p50: Number = None
    backward_ms_p50: Number = None
    optimizer_ms_p50: Number = None
    peak_memory_gib: Number = None
    peak_host_memory_gib: Number = None
    parameter_memory_gib: Number = None
    gradient_memory_gib: Number = None
    optimizer_memory_gib: Number = None
    data_set_memory_gib: Number = None
    alloc_retries: int | None = None
    peak_memory_step: int | None = None
    peak_memory_phase: Text = None
    forecast_memory_gib: Number = None
    forecast_memory_error_pct: Number = None
    forecast_memory_deviates: Text = None
    forecast_step_ms: Number = None
    forecast_step_error_pct: Number = None
    forecast_step_deviates: Text = None
    peak_reserved_gib: Number = None
    wire_bytes_per_step: Number = None
    collectives_per_step: Number = None
    train_accuracy_pct: Number = None
    validation_top5_accuracy_pct: Number = None
    test_top5_accuracy_pct: Number = None
    epoch_time_s: Number = None
    time_to_target_s: Number = None
    train_energy_wh: Number = None
    train_power_w: Number = None
    gpu_utilisation_pct: Number = None
    gpu_temperature_c: Number = None
    mfu_pct: Number = None
    flops_per_sample: Number = None
    peak_flops_per_device: Number = None
    parameters: int | None = None
    train_time_s: Number = None
    skipped_steps: int | None = None
    not_finite_steps: int | None = None
    cpu_pressure_pct: Number = None
    other_cpu_pct: Number = None
    transport_in_node: Text = None
    transport_between_nodes: Text = None
    gpudirect: Text = None
    transport_fell_back: Text = None


@dataclass(kw_only=True)
class TextNumbers:
    """Numbers of text runs, as accuracies of image runs; the first two are in summary.json."""

    validation_perplexity: Number = None
    test_perplexity: Number = None
    tokens_per_s: Number = None
    useful_tokens_per_s: Number = None
    useful_tokens_pct: Number = None
    mfu_literature_pct: Number = None
    mfu_useful_pct: Number = None


@dataclass(kw_only=True)
class TraceNumbers:
    """Means over all steps and ranks of analysis/report.json, by the names there."""

    step_ms: Number = None
    compute_pct: Number = None
    comm_pct: Number = None
    comm_exposed_pct: Number = None
    comm_overlap_pct: Number = None
    copy_exposed_pct: Number = None
    idle_pct: Number = None
    data_ms: Number = None
    forward_ms: Number = None
    backward_ms: Number = None
    optimizer_ms: Number = None
    data_wait_pct: Number = None
    host_wait_pct: Number = None
    kernel_wait_pct: Number = None
    other_idle_pct: Number = None
    straggler_pct: Number = None
    slowest_rank: int | None = None
    bubble_pct: Number = None
    bubble_ideal_pct: Number = None
    compute_imbalance: Number = None
    kernels_per_step: Number = None
    kernel_us_p50: Number = None
    short_kernel_pct: Number = None
    h2d_gbps: Number = None
    d2h_gbps: Number = None
    d2d_gbps: Number = None
    comm_bytes_per_step: Number = None
    allocations_per_step: Number = None


@dataclass(kw_only=True)
class ScalingNumbers:
    """Numbers of the run's point in a series of scaling."""

    speedup: Number = None
    scaling_efficiency_pct: Number = None
    speedup_vs_single: Number = None
    efficiency_vs_single_pct: Number = None


@dataclass(kw_only=True)
class RunRow(ScalingNumbers, TraceNumbers, TextNumbers, SummaryNumbers):
    """One run in `runs` of report.json: identity, numbers, layout (`placement.build_layout`), and missing files."""

    run: str
    run_dir: str
    status: str
    ending: str
    complete: bool
    missing: list[str]
    problems: list[str]
    attempts: int
    mlflow_run_id: Text
    task: Text
    configuration: str = ""
    """The name that it shares with its repeats (`variants.name_variants`)."""
    way: str
    """How it was carried out, if that is varied (`variants.name_way`)."""
    torch: Text
    cp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    layout: Text
    dimensions: int | None
    degenerate: bool
    missing_dimensions: list[str]
    sequence_parallel: bool | None
    layout_reason: Text
    pp_schedule: Text = None
    cp_method: Text = None
    wire_bytes_per_axis: dict[str, float]
    collectives_per_axis: dict[str, dict[str, int]]
    stages: list[dict[str, Any]]
    step_time_ms_mean: Number = None
    step_times_from: Text
    warmup: dict[str, Any] | None = None
    """{steps: left out at the beginning, first_step: that counts, method, settled}; None from a summary."""
    warmup_steps: int | None = None
    state_memory_gib: Number
    trace_source: Text
    trace_steps: int | None
    trace_steps_from: Text
    trace_findings: int | None
    hta: list[dict[str, Any]]
    phases_present: dict[str, dict[str, bool]]
    """Rank -> phase -> whether its trace has it."""
    memory_fragmentation_pct: Number = None
    noise_ms: Number = None
    sharding_effectiveness_pct: Number = None
    baseline: Text = None
    speedup_vs_baseline: Number = None
    main_cause: Text = None

    @property
    def is_compared(self) -> bool:
        """As `is_comparable`."""
        return is_comparable(self.status, self.degenerate)

    @property
    def is_foreign(self) -> bool:
        """Return whether its traces are the only source about it."""
        return self.status == TRACED

    @property
    def recorded_step_ms(self) -> float | None:
        """Return the mean of the recorded steps; None if no label marks the steps."""
        return None if self.trace_steps_from in (None, "recording") else self.step_ms


Rows = Sequence[RunRow]


def list_names(numbers: type) -> tuple[str, ...]:
    """Return the fields of one of the classes above."""
    return tuple(each.name for each in fields(numbers))


SUMMARY_FIELDS = list_names(SummaryNumbers)
TRACE_FIELDS = list_names(TraceNumbers)
STATE_FIELDS = ("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib")


def read_rows(report: Mapping[str, Any]) -> list[RunRow]:
    """Return the rows of report.json."""
    return [RunRow(**row) for row in report["runs"]]


def build_row(run: RunRecord, way: str = "", configuration: str = "") -> RunRow:
    """Return the facts from the files of one run."""
    summary, analysis = run.summary, run.analysis
    trace = {"comm_exposed_pct": summary.get("comm_exposed_pct"), **(analysis.get("mean") or {})}
    state = [summary.get(name) for name in STATE_FIELDS]
    phases = analysis.get("phases_present") or {}
    told: dict[str, Any] = {
        name: summary.get(name) for name in (*SUMMARY_FIELDS, "validation_perplexity", "test_perplexity")
    }
    told |= {name: trace.get(name) for name in TRACE_FIELDS} | {axis: run.axes.get(axis, 1) for axis in AXES}
    lines = run.metrics if run.status == "finished" else ()
    told |= build_layout(run) | build_numbers(summary, lines) | {"strategy": run.strategy}
    return RunRow(
        run=run.name,
        run_dir=str(run.folder),
        status=run.status,
        ending=run.ending,
        complete=not run.missing and not run.problems,
        missing=run.missing,
        problems=run.problems,
        attempts=run.starts,
        mlflow_run_id=run.mlflow_run_id,
        task=None if run.is_foreign else "text" if run.is_text else "image",
        configuration=configuration or run.name,
        way=way,
        torch=run.versions.get("torch"),
        state_memory_gib=None if None in state else sum(value for value in state if value is not None),
        trace_source=analysis.get("source"),
        trace_steps=trace.get("steps"),
        trace_steps_from=analysis.get("steps_from"),
        trace_findings=len(analysis["quality"]) if "quality" in analysis else None,
        hta=[entry for entry in analysis.get("hta") or [] if isinstance(entry, dict)],
        phases_present={r: {phase: phase in present for phase in PHASES} for r, present in phases.items()},
        **told,
    )


def apply_others(
    row: RunRow,
    noise: Mapping[str, Any],
    scaling: Sequence[Mapping[str, Any]],
    sharding: Sequence[Mapping[str, Any]],
    attribution: Mapping[str, Any],
) -> None:
    """Add the facts that need the other runs, and the sharding's effectiveness."""
    points = [point for series in scaling for point in series["points"] if row.run in point["runs"]]
    shards = next((entry for entry in sharding if entry["run"] == row.run), None)
    pair = next((p for p in attribution["pairs"] if p["run"] == row.run and p["comparable"]), None)
    peak, reserved = row.peak_memory_gib, row.peak_reserved_gib
    row.warmup_steps = row.warmup["steps"] if row.warmup else None
    row.memory_fragmentation_pct = 100 * (reserved - peak) / reserved if peak and reserved else None
    row.noise_ms = noise["noise_ms"].get(row.run)
    for name in list_names(ScalingNumbers):
        setattr(row, name, _first(points, name))
    row.sharding_effectiveness_pct = shards["sharding_effectiveness_pct"] if shards else None
    if pair:
        row.baseline, row.main_cause = pair["baseline"], pair["main_cause"]
        row.speedup_vs_baseline = pair["baseline_ms"] / pair["run_ms"]


def _first(points: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the number of the first series that has it: strong scaling comes first."""
    known = [point[name] for point in points if point[name] is not None]
    return known[0] if known else None
