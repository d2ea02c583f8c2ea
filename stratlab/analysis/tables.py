"""The tables of an analysis as CSV, and schema.json that explains every column of them.

The tables of an analysis: every column with its unit and meaning. docs/analysis.md says the same (a test compares).

In every table an empty cell is "not known", never zero.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratlab.analysis.rank import RankAnalysis

SCHEMA_VERSION = 2

Columns = dict[str, tuple[str, str]]
"""Column -> (unit, meaning). Unit "" = text or a plain number without one."""

RUN: Columns = {"run": ("", "name of the run")}
RANK: Columns = RUN | {"rank": ("", "rank of the process")}
STEP: Columns = RANK | {"step": ("", "training step, counted from 1")}
TIMES: Columns = {
    "compute_ms": ("ms", "union of the compute kernels (gpu) or of the operators (cpu)"),
    "comm_ms": ("ms", "union of the communication, hidden or not"),
    "comm_overlap_ms": ("ms", "communication while something computed"),
    "comm_exposed_ms": ("ms", "communication while nothing computed; with straggler and bubble"),
    "straggler_ms": ("ms", "exposed communication before the last rank came"),
    "bubble_ms": ("ms", "exposed point-to-point communication of a pipeline"),
    "copy_ms": ("ms", "union of the copies, hidden or not"),
    "copy_exposed_ms": ("ms", "copies while nothing computed or communicated"),
    "idle_ms": ("ms", "nothing ran"),
    "data_wait_ms": ("ms", "idle under the host's label of data loading; empty without such a label"),
    "host_wait_ms": ("ms", "idle until the host launched the next event; on the cpu all other idle time"),
    "launch_wait_ms": ("ms", "idle between a launch and the start of its event, or inside the launch itself"),
    "kernel_wait_ms": ("ms", "idle in gaps below 30 us between queued events"),
    "other_idle_ms": ("ms", "the rest of the idle time"),
}
LABELS: Columns = {
    "data_ms": ("ms", "the data label on the host"),
    "forward_ms": ("ms", "GPU time of what was issued in the forward label; on the cpu the label"),
    "backward_ms": ("ms", "the same of the backward label"),
    "optimizer_ms": ("ms", "the same of the optimizer label"),
}
SHARES: Columns = {
    name.replace("_ms", "_pct"): ("%", f"{meaning}: share of the step")
    for name, (_, meaning) in TIMES.items()
    if name not in ("copy_ms", "comm_overlap_ms")
}
SCHEMA: dict[str, Columns] = {
    "rank_metrics": RANK
    | {
        "host": ("", "host on which the rank was recorded"),
        "steps": ("", "recorded steps"),
        "step_ms": ("ms", "mean length of a step"),
        "host_step_ms": ("ms", "mean length of the step's label on the host"),
    }
    | SHARES
    | {"comm_overlap_pct": ("%", "share of the communication that compute hides")}
    | LABELS
    | {
        "gap_kind": (
            "",
            "of most of host_wait and launch_wait: short, first (before a step's first event), label, long",
        ),
        "gap_label": ("", "the label under which most of it lies, in long gaps"),
        "short_gap_pct": ("%", "share of it in gaps below 1 ms and 5 % of the step"),
        "first_gap_pct": ("%", "share of it in longer gaps before the first event of a step"),
        "longest_gap_ms": ("ms", "the longest gap of it"),
        "kernels_per_step": ("", "kernels launched per step, without copies"),
        "kernel_us_p50": ("us", "median duration of a kernel"),
        "short_kernel_pct": ("%", "share of the kernels shorter than 10 us"),
        "h2d_gbps": ("GB/s", "bytes over time of the copies from host to device"),
        "d2h_gbps": ("GB/s", "bytes over time of the copies from device to host"),
        "d2d_gbps": ("GB/s", "bytes over time of the copies within the device"),
        "comm_bytes_per_step": ("bytes", "what the collectives of one step were given"),
        "peak_allocated_gib": ("GiB", "largest total of the allocator while the steps were recorded"),
        "peak_reserved_gib": ("GiB", "largest total that the allocator had reserved"),
        "device_memory_gib": ("GiB", "memory of the device; of several ranks the smallest"),
        "unrecorded_launches": ("", "launches on a device of whose activity nothing was recorded"),
        "allocations_per_step": ("", "events of the allocator per step"),
    },
    "step_metrics": STEP
    | {
        "source": ("", "gpu = GPU time; cpu = host operator time"),
        "step_ms": ("ms", "length of the step; its parts sum to it"),
        "host_step_ms": ("ms", "length of the step's label on the host"),
    }
    | TIMES
    | LABELS,
    "phase_metrics": STEP
    | {
        "phase": ("", "data, forward, backward, optimizer or other"),
        "span_ms": ("ms", "length of the phase; the phases of a step sum to the step"),
    }
    | TIMES,
    "kernel_stats": RANK
    | {
        "name": ("", "name of the GPU event"),
        "type": ("", "compute, comm or copy"),
        "count": ("", "events over the whole recording"),
        "sum_ms": ("ms", "sum of their durations"),
        "mean_us": ("us", "mean duration"),
        "p50_us": ("us", "median duration"),
        "p95_us": ("us", "95th percentile of the durations"),
        "max_us": ("us", "largest duration"),
        "pct": ("%", "share of the summed durations of all GPU events of the rank"),
    },
    "collective_stats": RANK
    | {
        "name": ("", "name in the trace"),
        "collective": ("", "all_reduce, all_gather, ..."),
        "axis": ("", "axis of the mesh, where the trace or the run tells it"),
        "count": ("", "calls over all recorded steps"),
        "bytes": ("bytes", "what all calls were given"),
        "total_ms": ("ms", "sum of their durations"),
        "exposed_ms": ("ms", "of it while nothing computed"),
        "wait_ms": ("ms", "time above the shortest call of any rank: waiting for the last one"),
        "exposed_wait_ms": ("ms", "of it while nothing computed"),
        "arrived_last": ("", "calls in which this rank came last"),
    },
    "copy_stats": RANK
    | {
        "kind": ("", "HtoD, DtoH, DtoD, ..."),
        "count": ("", "copies over the whole recording"),
        "bytes": ("bytes", "sum of their sizes"),
        "total_ms": ("ms", "sum of their durations"),
        "gbps": ("GB/s", "bytes over time"),
    },
    "idle_stats": RANK
    | {
        "device": ("", "number of the GPU"),
        "stream": ("", "CUDA stream"),
        "host_wait_ms": (
            "ms",
            "whole gaps before events that were launched after the gap had begun (HTA's rule; host_wait of a step ends "
            "at the launch)",
        ),
        "kernel_wait_ms": ("ms", "gaps below 30 us between queued events"),
        "other_ms": ("ms", "all other gaps"),
    },
    "memory_curve": RANK
    | {
        "device": ("", "cuda:0, cpu, ..."),
        "t_ms": ("ms", "time since the first event of the rank's trace"),
        "allocated_mib": ("MiB", "largest total of the allocator in this bin of time"),
        "reserved_mib": ("MiB", "largest reserved total in this bin of time"),
    },
    "hta_status": RUN
    | {
        "analysis": ("", "analysis of Holistic Trace Analysis"),
        "status": ("", "ok, unsupported (does not apply to these traces) or failed"),
        "reason": ("", "why it is not ok, or what was cut"),
        "seconds": ("s", "how long it took"),
        "tables": ("", "its tables in tables/hta"),
    },
    "quality": RUN
    | {
        "action": ("", "skipped = not in the numbers; noted = in them, with this reservation"),
        "reason": ("", "what was found"),
        "file": ("", "file it was found in"),
        "rank": ("", "rank that it concerns"),
    },
}


FROM_REPORT = {
    "rank_metrics": "ranks",
    "step_metrics": "steps",
    "phase_metrics": "phases",
    "collective_stats": "collectives",
    "copy_stats": "copies",
    "idle_stats": "idle",
    "hta_status": "hta",
    "quality": "quality",
}
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_tables(folder: Path, report: Mapping[str, Any], ranks: Sequence[RankAnalysis]) -> None:
    """Writes every table of SCHEMA, those without rows as a header alone, and schema.json.

    Text that a spreadsheet would take for a formula gets an apostrophe. An empty cell is "not known".

    Args:
        ranks: for all kernels and the memory curve; the report holds the most used kernels only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, key in FROM_REPORT.items():
        _write(folder, name, report["run"]["run"], report.get(key) or [])
    _write(folder, "kernel_stats", report["run"]["run"], (asdict(row) for r in ranks for row in r.kernels))
    _write(folder, "memory_curve", report["run"]["run"], (asdict(point) for r in ranks for point in r.memory))
    (folder / "schema.json").write_text(json.dumps(build_schema(), indent=1) + "\n", encoding="utf-8")


def build_schema() -> dict[str, Any]:
    """The content of schema.json."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tables": {
            f"{table}.csv": {
                column: {"unit": unit, "meaning": meaning} for column, (unit, meaning) in columns.items()
            }
            for table, columns in SCHEMA.items()
        },
    }


def _write(folder: Path, table: str, run: str, rows: Iterable[Mapping[str, Any]]) -> None:
    columns = list(SCHEMA[table])
    with open(folder / f"{table}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)  # ends lines with CR LF, so that a CR alone in a text is quoted
        writer.writerow(columns)
        for row in rows:
            named = {"run": run, **row}
            writer.writerow([_cell(named.get(column)) for column in columns])


def _cell(value: Any) -> Any:
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text
