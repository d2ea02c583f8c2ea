"""The parts of the page that show what was measured: speed, memory, traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.reading.run_rows import PHASES, STATE_FIELDS
from stratlab.drawing import (
    Column,
    Section,
    badge,
    details,
    html_table,
    note,
    stacked_bars,
    subtitle,
)
from stratlab.run_directory.record import TRACED

Rows = Sequence[Mapping[str, Any]]

HTA_BADGES = {"ok": "good", "unsupported": "plain", "failed": "bad"}
STATUS_BADGES = {
    "finished": "good",
    "failed": "bad",
    "stopped": "warn",
    "unfinished": "warn",
    TRACED: "plain",
}


def build_speed(rows: Rows, noise: Mapping[str, Any]) -> Section:
    """Throughput, step times and their parts, with the band of the repeats."""
    tokens: list[Column | str] = [
        Column("tokens_per_s", "tokens", "per s", 0),
        Column("useful_tokens_per_s", "useful tokens", "per s", 0),
        Column("useful_tokens_pct", "useful", "%", 1),
    ]
    of_text: list[Column | str] = [
        Column("mfu_useful_pct", "MFU, useful work alone", "%", 1),
        Column("mfu_literature_pct", "MFU, attention not causal", "%", 1),
    ]
    text = any(row["task"] == "text" for row in rows)
    columns: list[Column | str] = [
        *("run", "strategy", "status", Column("samples_per_s", "rows" if text else "samples", "per s", 1)),
        *(tokens if text else []),
        Column("step_time_ms_p50", "step p50", "ms", 2),
        *([Column("noise_ms", "±", "ms", 2)] if noise["repeats"] else []),
        Column("step_time_ms_p95", "p95", "ms", 2),
        *(Column(f"{phase}_ms_p50", phase, "ms", 2) for phase in PHASES),
        Column("mfu_pct", "MFU", "%", 1),
        *(of_text if text else []),
        Column("measured_steps", "steps timed"),
    ]
    table = html_table([{**row, "status": _status(row)} for row in rows], columns)
    if noise["repeats"]:
        table += note(_say_noise(noise))
    bars = {row["run"]: {phase: row[f"{phase}_ms_p50"] for phase in PHASES} for row in _finished(rows)}
    remark = note(
        "Medians of the phases over the measured steps; their sum need not be the median of the whole step. "
        "The steps left out first are found by a rule, the same for every run (see the last section)."
    )
    html = table + subtitle("Where a step goes") + stacked_bars(bars, "ms per step") + remark
    return Section("Speed", html)


def build_use(rows: Rows) -> list[Section]:
    """How long an epoch and a target took, what the GPUs used for it and how busy and hot they were; nothing where no
    run knows any of it."""
    columns = [
        Column("train_time_s", "training", "s", 1),
        Column("epoch_time_s", "epoch", "s", 2),
        Column("time_to_target_s", "until the target", "s", 1),
        Column("train_energy_wh", "energy", "Wh", 2),
        Column("train_power_w", "power of all GPUs", "W", 0),
        Column("gpu_utilisation_pct", "GPU utilisation, mean", "%", 1),
        Column("gpu_temperature_c", "hottest GPU", "°C", 0),
    ]
    known = [column for column in columns if any(row[column.key] is not None for row in rows)]
    if not any(column.key != "train_time_s" for column in known):
        return []
    remark = note(
        "Energy: the power that NVML tells of each GPU, summed over the ranks and over the time of all attempts, from "
        "the first step to the last line; steps made twice count twice. Utilisation: share of the time in which "
        "any kernel ran, which says little about how well. An epoch lasts from its first step to its last one, "
        "validations and checkpoints between them included. The target: run.config.target_*."
    )
    return [Section("Time, energy and use of the GPUs", html_table(rows, ["run", *known]) + remark)]


def build_memory(rows: Rows) -> Section:
    """What a rank holds, counted, and the peaks."""
    columns: list[Column | str] = [
        "run",
        Column("parameter_memory_gib", "parameters", "GiB"),
        Column("gradient_memory_gib", "gradients", "GiB"),
        Column("optimizer_memory_gib", "optimizer state", "GiB"),
        Column("state_memory_gib", "held by the state", "GiB"),
        Column("peak_memory_gib", "peak on the device", "GiB", 3),
        Column("peak_memory_phase", "peak in"),
        Column("peak_reserved_gib", "reserved on the device", "GiB", 3),
        Column("alloc_retries", "allocator's retries"),
        Column("data_set_memory_gib", "data set", "GiB", 3),
        Column("peak_host_memory_gib", "peak on the host", "GiB", 3),
    ]
    if any(row["forecast_memory_gib"] is not None for row in rows):
        columns += [
            Column("forecast_memory_gib", "peak, foreseen", "GiB", 3),
            Column("forecast_memory_error_pct", "foreseen against measured", "%", 1),
            Column("forecast_memory_deviates", "outside its band, most in"),
        ]
    bars = {
        row["run"]: {name.removesuffix("_memory_gib"): row[name] for name in STATE_FIELDS}
        for row in _finished(rows)
    }
    remark = note(
        "Parameters, gradients and optimizer state are counted from the tensors of the rank that holds most: "
        "exact on any hardware. Activations, buffers and caches are in the peaks only. The device's peak is that of "
        "training steps behind the warm-up, without evaluation, checkpoints, export and the data set, which has a "
        "column of its own; the host's is the whole process's. Foreseen: from an operations file of the run's settings "
        "(docs/predict.md); more than 5 % off is marked with the part that is furthest off."
    )
    return Section("Memory per rank", html_table(rows, columns) + stacked_bars(bars, "GiB per rank") + remark)


def build_traces(rows: Rows) -> list[Section]:
    """Communication and idle time, as the traces of each run show them; and what Holistic Trace Analysis could do."""
    columns: list[Column | str] = [
        *("run", Column("trace_source", "events"), Column("trace_steps", "steps")),
        *(Column("step_ms", "step", "ms", 2), Column("compute_pct", "compute", "%", 1)),
        *(Column("comm_pct", "comm.", "%", 1), Column("comm_exposed_pct", "exposed comm.", "%", 1)),
        Column("comm_overlap_pct", "hidden share of comm.", "%", 1),
        *(Column("copy_exposed_pct", "exposed copies", "%", 1), Column("idle_pct", "idle", "%", 1)),
    ]
    parts = {
        "compute_pct": "compute",
        "comm_exposed_pct": "exposed communication",
        "copy_exposed_pct": "exposed copies",
        "idle_pct": "idle",
    }
    analysed = [row for row in rows if row["status"] in ("finished", TRACED) and row["trace_source"]]
    bars = {row["run"]: {part: row[name] for name, part in parts.items()} for row in analysed}
    if not analysed:
        return [Section("Traces", nothing="no run has analysed traces")]
    html = html_table(rows, columns) + stacked_bars(bars, "% of the traced steps")
    statuses = [
        {
            "run": row["run"],
            **entry,
            "status": badge(str(entry.get("status")), HTA_BADGES.get(entry.get("status"), "warn")),
        }
        for row in rows
        for entry in row["hta"]
    ]
    silent = statuses and all(entry.get("status") == "unsupported" for row in rows for entry in row["hta"])
    if statuses and not silent:
        table = html_table(statuses, ["run", "analysis", "status", "reason"])
        html += details("Holistic Trace Analysis: what ran", table)
    phases = [
        {"run": row["run"], "rank": rank, **present}
        for row in rows
        for rank, present in row["phases_present"].items()
    ]
    if phases:
        html += details("Phases found in the traces", html_table(phases, ["run", "rank", *PHASES]))
    hta = Section("Holistic Trace Analysis", nothing="unsupported by the traces of all runs")
    return [Section("Traces", html), *([hta] if silent else [])]


def _say_noise(noise: Mapping[str, Any]) -> str:
    """Where the ± comes from."""
    return (
        f"±: {noise['method']}; {noise['repeats']} repeats, {noise['degrees']} degrees of freedom, "
        f"{noise['relative_pct']:.2g} % of the median. Taken to be the same share for every strategy."
    )


def _finished(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["status"] == "finished"]


def _status(row: Mapping[str, Any]) -> Markup:
    shown = badge(row["status"], STATUS_BADGES[row["status"]])
    return shown + " " + badge("degenerate", "bad") if row["degenerate"] else shown
