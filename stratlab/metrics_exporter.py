"""Serve the newest numbers of runs as Prometheus gauges, read from their folders at each scrape.

The exporter is stateless and does not change runs: the trainer writes metrics.jsonl as always.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stratlab.run_directory.files import (
    has_marks,
    is_number,
    read_config,
    read_tail,
    read_world_size,
)
from stratlab.run_directory.outcome import AT_WORK, read_attempts, read_standing

TAIL_BYTES = 262_144
GIB = 2**30
MS, PCT = 1e-3, 1e-2
STATUSES = ("finished", "failed", "stopped", "unfinished", AT_WORK)
LABELS = ("comparison", "run")
RANK = re.compile(r"rank(\d+)_(\w+)")
FACTS = {
    "stratlab_run_step": "The last step that was written.",
    "stratlab_run_steps": "Number of steps of the run.",
    "stratlab_run_attempts": "Starts of the run.",
    "stratlab_run_ranks": "Processes of the run.",
    "stratlab_run_written_timestamp_seconds": "Time of the last write to metrics.jsonl.",
}


class Row(NamedTuple):
    """Define one gauge: `field` of lines of that kind in metrics.jsonl, times `factor`, in base units."""

    kind: str
    field: str
    name: str
    help: str
    factor: float = 1.0


ROWS = (
    Row("train", "loss", "stratlab_train_loss", "Loss of the last step that was written."),
    Row("train", "grad_norm", "stratlab_gradient_norm", "Norm of the whole gradient before clipping."),
    Row("train", "lr", "stratlab_learning_rate", "Learning rate."),
    Row("train", "step_time_ms", "stratlab_step_seconds", "Duration of a step.", MS),
    Row("train", "data_ms", "stratlab_data_seconds", "Waiting for data in a step.", MS),
    Row("train", "forward_ms", "stratlab_forward_seconds", "Forward pass of a step.", MS),
    Row("train", "backward_ms", "stratlab_backward_seconds", "Backward pass of a step.", MS),
    Row("train", "optimizer_ms", "stratlab_optimizer_seconds", "Update of a step.", MS),
    Row("train", "samples", "stratlab_step_samples", "Samples of a step, of all ranks."),
    Row("train", "skipped", "stratlab_skipped_updates", "Whether the update of the step was skipped."),
    Row("eval", "validation_loss", "stratlab_validation_loss", "Loss on the validation split."),
    Row(
        "eval",
        "validation_accuracy_pct",
        "stratlab_validation_accuracy_ratio",
        "Accuracy of image classification.",
        PCT,
    ),
    Row("eval", "validation_perplexity", "stratlab_validation_perplexity", "Perplexity of text."),
    Row("result", "samples_per_s", "stratlab_result_samples_per_second", "Throughput of a finished run."),
    Row("result", "mfu_pct", "stratlab_result_mfu_ratio", "Model FLOPs utilisation of a finished run.", PCT),
)
RANK_ROWS = (
    Row("system", "host_memory_gib", "stratlab_host_memory_bytes", "Resident memory of a rank.", GIB),
    Row(
        "system",
        "memory_allocated_gib",
        "stratlab_device_memory_bytes",
        "Allocated memory of a rank's device.",
        GIB,
    ),
    Row(
        "system", "gpu_utilisation_pct", "stratlab_gpu_utilisation_ratio", "Share of time with a kernel.", PCT
    ),
    Row("system", "gpu_temperature_c", "stratlab_gpu_temperature_celsius", "Temperature of a rank's GPU."),
    Row("system", "gpu_power_w", "stratlab_gpu_power_watts", "Power of a rank's GPU."),
)
"""Gauges of each rank: `rank<k>_<field>` in metrics.jsonl, with the label `rank`."""


class RunGauges(Collector):
    """Collect the gauges of the `newest` runs below a folder of results, by the last change of metrics.jsonl."""

    def __init__(self, results: Path, newest: int) -> None:
        self.results, self.newest = results, newest

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return no metrics; each scrape lists the present ones."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=[*LABELS, *labels])

        info = gauge("stratlab_run_info", "1; its labels describe the run.", "strategy", "model")
        status = gauge("stratlab_run_status", "1 for the run's status.", "status")
        facts = [gauge(*fact) for fact in FACTS.items()]
        rows = {row: gauge(row.name, row.help) for row in ROWS}
        ranks = {row.field: (row, gauge(row.name, row.help, "rank")) for row in RANK_ROWS}
        for folder in find_runs(self.results, self.newest):
            labels = [folder.parent.name, folder.name]
            config = read_config(folder, [])
            asked, resolved = config.get("config", {}), config.get("resolved", {})
            attempts = read_attempts(folder)
            now, _ = read_standing(folder, asked.get("mode"), attempts, (folder / "summary.json").is_file())
            info.add_metric([*labels, str(asked.get("strategy", "")), str(asked.get("model", ""))], 1)
            for each in STATUSES:
                status.add_metric([*labels, each], float(each == now))
            last = read_last(folder / "metrics.jsonl")
            values = (
                max((line["step"] for line in last.values() if is_number(line.get("step"))), default=None),
                resolved.get("steps"),
                sum(line["event"] == "started" for line in attempts),
                read_world_size(resolved, attempts) if config else None,
                written(folder),
            )
            for family, value in zip(facts, values, strict=True):
                if is_number(value):
                    family.add_metric(labels, float(value))
            for row, family in rows.items():
                if is_number(value := last.get(row.kind, {}).get(row.field)):
                    family.add_metric(labels, value * row.factor)
            for key, value in last.get("system", {}).items():
                if (found := RANK.fullmatch(key)) and found[2] in ranks and is_number(value):
                    row, family = ranks[found[2]]
                    family.add_metric([*labels, found[1]], value * row.factor)
        yield from (info, status, *facts, *rows.values(), *(family for _, family in ranks.values()))


def find_runs(results: Path, newest: int) -> list[Path]:
    """Return the run directories RESULTS/COMPARISON/RUN written last, in the order of their names."""
    folders = [folder for comparison in _list_folders(results) for folder in _list_folders(comparison)]
    found = filter(has_marks, folders)
    return sorted(sorted(found, key=written)[-newest:])


def _list_folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
    except OSError:
        return []


def written(folder: Path) -> float:
    """Return when the run's metrics.jsonl was last written, as Unix time; 0 = never."""
    try:
        return (folder / "metrics.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def read_last(metrics: Path) -> dict[str, dict[str, Any]]:
    """Return kind -> the numbers of its last line, read from the end of the file.

    `system` has one line per subject, so that the newest line of each is merged.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in read_tail(metrics, TAIL_BYTES):
        kind = line.get("kind")
        if isinstance(kind, str):
            found[kind] = found.get(kind, {}) | line if kind == "system" else line
    return found
