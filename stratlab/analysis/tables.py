"""The tables of an analysis as CSV, and schema.json that explains every column of them.

In every table an empty cell is "not known", never zero. `docs/building/columns_page.py` makes a page of the schema.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratlab.analysis.rank import RankAnalysis
from stratlab_spec.step_parts import PARTS, SHARES

SCHEMA_VERSION = 2

UNITS = {"ms": "ms", "us": "us", "seconds": "s", "pct": "%"}
UNITS |= {"bytes": "bytes", "mib": "MiB", "gib": "GiB", "gbps": "GB/s"}
"""By a word of a column's name; a column without one is text or a plain number."""

Columns = dict[str, str]
"""Column -> meaning."""

RUN: Columns = {"run": "name of the run"}
RANK: Columns = RUN | {"rank": "rank of the process"}
STEP: Columns = RANK | {"step": "training step, counted from 1"}
TIMES: Columns = {f"{part.name}_ms": part.meaning for part in PARTS}
LABELS: Columns = {
    "data_ms": "the data label on the host",
    "forward_ms": "GPU time of what was issued in the forward label; on the cpu the label",
    "backward_ms": "the same of the backward label",
    "optimizer_ms": "the same of the optimizer label",
}
SHARE_COLUMNS: Columns = {
    f"{part.name}_pct": f"{part.meaning}: share of the step" for part in PARTS if part.name in SHARES
}
SCHEMA: dict[str, Columns] = {
    "rank_metrics": RANK
    | {
        "host": "host on which the rank was recorded",
        "steps": "recorded steps",
        "step_ms": "mean length of a step",
        "host_step_ms": "mean length of the step's label on the host",
    }
    | SHARE_COLUMNS
    | {"comm_overlap_pct": "share of the communication that compute hides"}
    | LABELS
    | {
        "gap_kind": "of most of host_wait and launch_wait: short, first (before a step's first event), label, long",
        "gap_label": "the label under which most of it lies, in long gaps",
        "short_gap_pct": "share of it in gaps below 1 ms and 5 % of the step",
        "first_gap_pct": "share of it in longer gaps before the first event of a step",
        "longest_gap_ms": "the longest gap of it",
        "kernels_per_step": "kernels launched per step, without copies",
        "kernel_us_p50": "median duration of a kernel",
        "short_kernel_pct": "share of the kernels shorter than 10 us",
        "h2d_gbps": "bytes over time of the copies from host to device",
        "d2h_gbps": "bytes over time of the copies from device to host",
        "d2d_gbps": "bytes over time of the copies within the device",
        "comm_bytes_per_step": "what the collectives of one step were given",
        "peak_allocated_gib": "largest total of the allocator while the steps were recorded",
        "peak_reserved_gib": "largest total that the allocator had reserved",
        "device_memory_gib": "memory of the device; of several ranks the smallest",
        "unrecorded_launches": "launches on a device of whose activity nothing was recorded",
        "allocations_per_step": "events of the allocator per step",
    },
    "step_metrics": STEP
    | {
        "source": "gpu = GPU time; cpu = host operator time",
        "step_ms": "length of the step; its parts sum to it",
        "host_step_ms": "length of the step's label on the host",
    }
    | TIMES
    | LABELS,
    "phase_metrics": STEP
    | {
        "phase": "data, forward, backward, optimizer or other",
        "span_ms": "length of the phase; the phases of a step sum to the step",
    }
    | TIMES,
    "kernel_stats": RANK
    | {
        "name": "name of the GPU event",
        "type": "compute, comm or copy",
        "count": "events over the whole recording",
        "sum_ms": "sum of their durations",
        "mean_us": "mean duration",
        "p50_us": "median duration",
        "p95_us": "95th percentile of the durations",
        "max_us": "largest duration",
        "pct": "share of the summed durations of all GPU events of the rank",
    },
    "collective_stats": RANK
    | {
        "name": "name in the trace",
        "collective": "all_reduce, all_gather, ...",
        "axis": "axis of the mesh, where the trace or the run tells it",
        "count": "calls over all recorded steps",
        "bytes": "what all calls were given",
        "total_ms": "sum of their durations",
        "exposed_ms": "of it while nothing computed",
        "wait_ms": "time above the shortest call of any rank: waiting for the last one",
        "exposed_wait_ms": "of it while nothing computed",
        "arrived_last": "calls in which this rank came last",
    },
    "copy_stats": RANK
    | {
        "kind": "HtoD, DtoH, DtoD, ...",
        "count": "copies over the whole recording",
        "bytes": "sum of their sizes",
        "total_ms": "sum of their durations",
        "gbps": "bytes over time",
    },
    "idle_stats": RANK
    | {
        "device": "number of the GPU",
        "stream": "CUDA stream",
        "host_wait_ms": "whole gaps before events that were launched after the gap had begun (HTA's rule; host_wait "
        "of a step ends at the launch)",
        "kernel_wait_ms": "gaps below 30 us between queued events",
        "other_ms": "all other gaps",
    },
    "memory_curve": RANK
    | {
        "device": "cuda:0, cpu, ...",
        "t_ms": "time since the first event of the rank's trace",
        "allocated_mib": "largest total of the allocator in this bin of time",
        "reserved_mib": "largest reserved total in this bin of time",
    },
    "hta_status": RUN
    | {
        "analysis": "analysis of Holistic Trace Analysis",
        "status": "ok, unsupported (does not apply to these traces) or failed",
        "reason": "why it is not ok, or what was cut",
        "seconds": "how long it took",
        "tables": "its tables in tables/hta",
    },
    "quality": RUN
    | {
        "action": "skipped = not in the numbers; noted = in them, with this reservation",
        "reason": "what was found",
        "file": "file it was found in",
        "rank": "rank that it concerns",
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
    """Write every table of SCHEMA, those without rows as only a header, and schema.json.

    Text that a spreadsheet would take for a formula gets an apostrophe. An empty cell is "not known".

    Args:
        ranks: for all kernels and the memory curve; the report holds the most used kernels only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Iterable[Mapping[str, Any]]] = {
        n: report.get(key) or [] for n, key in FROM_REPORT.items()
    }
    rows["kernel_stats"] = (asdict(row) for rank in ranks for row in rank.kernels)
    rows["memory_curve"] = (asdict(point) for rank in ranks for point in rank.memory)
    for name in SCHEMA:
        _write(folder / f"{name}.csv", list(SCHEMA[name]), report["run"]["run"], rows[name])
    (folder / "schema.json").write_text(json.dumps(build_schema(), indent=1) + "\n", encoding="utf-8")


def build_schema() -> dict[str, Any]:
    """Return the content of schema.json."""
    tables = {
        f"{table}.csv": {
            name: {"unit": find_unit(name), "meaning": meaning} for name, meaning in columns.items()
        }
        for table, columns in SCHEMA.items()
    }
    return {"schema_version": SCHEMA_VERSION, "tables": tables}


def find_unit(column: str) -> str:
    """Return the unit by the name of a column; "" = text or a plain number without one."""
    return next((unit for word in column.split("_") if (unit := UNITS.get(word))), "")


def _write(path: Path, columns: Sequence[str], run: str, rows: Iterable[Mapping[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)  # ends lines with CR LF, so that a CR alone in a text is quoted
        writer.writerow(columns)
        for row in rows:
            named = {"run": run, **row}
            writer.writerow([_cell(named.get(column)) for column in columns])


def _cell(value: Any) -> Any:
    text = "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text
