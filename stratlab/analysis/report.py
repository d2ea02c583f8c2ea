"""The content of report.json: every number of an analysis, with its origin.

Also the other recordings of a run, and the programs that open them.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratlab.analysis.hta_bridge import HtaRun
from stratlab.analysis.kernels import (
    CopyRow,
    KernelRow,
    find_median,
    find_short_share,
    sort_collectives,
    sum_durations,
)
from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.run_facts import RunFacts
from stratlab.analysis.step_rows import build_means, sum_gaps
from stratlab.run_directory.late_rank import find_late_rank
from stratlab.traces.discover import TraceFinding
from stratlab.traces.merge import Clocks, Merged, build_unmerged
from stratlab_spec.step_parts import WORDS
from stratlab_spec.step_time.step_forecast import compare_parts

COPY_RATES = {"HtoD": "h2d_gbps", "DtoH": "d2h_gbps", "DtoD": "d2d_gbps"}


def build_rank_row(rank: RankAnalysis) -> dict[str, Any]:
    """Return means of its steps, its kernels, copies and memory; None = unknown from the trace."""
    return {
        "rank": rank.rank,
        "host": rank.host,
        "steps": len(rank.rows),
        **build_means(rank.rows),
        **_describe([rank]),
    }


def build_mean_row(
    ranks: Sequence[RankAnalysis],
    axes: Mapping[str, int],
    micro_batches: int,
    stages_per_rank: int = 1,
) -> dict[str, Any]:
    """Return the means over all ranks, and their spread. Memory: the rank with most.

    `bubble_ideal_pct`: of p equal stages, v of them on each rank, and m micro-batches (p - 1) / (v m + p - 1) of the
    time of the schedule (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473). That time is forward and backward,
    not the whole step, of which `bubble_pct` is a share: so it counts as much less here.
    """
    rows = [row for rank in ranks for row in rank.rows]
    compute = {rank.rank: sum(row.compute_ms for row in rank.rows) / len(rank.rows) for rank in ranks}
    means = build_means(rows)
    mean = statistics.fmean(compute.values())
    return {
        "ranks": len(ranks),
        "steps": len({row.step for row in rows}),
        **means,
        "bubble_ideal_pct": _find_ideal_bubble(means, axes.get("pp", 1), micro_batches * stages_per_rank),
        **_describe(ranks),
        "compute_imbalance": max(compute.values()) / mean if mean else None,
        "slowest_rank": find_late_rank(
            map(vars, rows), (vars(c) for rank in ranks for c in rank.collectives)
        ),
    }


def _find_ideal_bubble(means: Mapping[str, Any], stages: int, passes: int) -> float | None:
    """Return the bubble in % of the step. `passes`: of micro-batches through one rank. Without labels of phases all of
    it is schedule.
    """
    if stages < 2:
        return None
    scheduled_ms = [means.get(name) for name in ("forward_ms", "backward_ms")]
    step_ms = means.get("step_ms")
    known = None not in scheduled_ms and step_ms
    share = min(sum(ms or 0.0 for ms in scheduled_ms) / step_ms, 1.0) if known and step_ms else 1.0
    return 100 * share * (stages - 1) / (passes + stages - 1)


def _describe(ranks: Sequence[RankAnalysis]) -> dict[str, Any]:
    steps = sum(len(rank.rows) for rank in ranks)
    on_gpu = ranks[0].source == "gpu"
    durations = sum_durations([rank.durations for rank in ranks])
    sizes = [row.bytes for rank in ranks for row in rank.collectives]
    talked = [size for size in sizes if size is not None]
    copies = [copy for rank in ranks for copy in rank.copies]
    device = [point for rank in ranks for point in rank.memory if point.device != "cpu"]
    reserved = [point.reserved_mib for point in device if point.reserved_mib is not None]
    counted = [rank.allocations for rank in ranks if rank.allocations is not None]
    gaps = sum_gaps([rank.gaps for rank in ranks])
    return {
        "gap_kind": gaps.kind,
        "gap_label": gaps.label,
        "short_gap_pct": 100 * gaps.short / gaps.whole if gaps.whole else None,
        "first_gap_pct": 100 * gaps.first / gaps.whole if gaps.whole else None,
        "longest_gap_ms": gaps.longest / 1e6 if gaps.whole else None,
        "kernels_per_step": durations.in_steps / steps if on_gpu else None,
        "kernel_us_p50": find_median(durations.kernels) if on_gpu else None,
        "short_kernel_pct": find_short_share(durations.kernels) if on_gpu else None,
        **{name: _rate(copies, kind) for kind, name in COPY_RATES.items()},
        "comm_bytes_per_step": sum(talked) / steps if talked and len(talked) == len(sizes) else None,
        "peak_allocated_gib": max((p.allocated_mib / 1024 for p in device), default=None),
        "peak_reserved_gib": max(reserved) / 1024 if reserved else None,
        "device_memory_gib": min(
            (rank.device_memory_gib for rank in ranks if rank.device_memory_gib is not None), default=None
        ),
        "unrecorded_launches": None if on_gpu else sum(rank.unrecorded for rank in ranks),
        "allocations_per_step": sum(counted) / steps if counted else None,
    }


def _rate(copies: Sequence[CopyRow], kind: str) -> float | None:
    """Return bytes over time of all copies of one kind, GB/s; 1 GB/s = 1e6 bytes per ms."""
    mine = [copy for copy in copies if copy.kind == kind and copy.bytes is not None]
    total_ms = sum(copy.total_ms for copy in mine)
    return sum(copy.bytes or 0 for copy in mine) / total_ms / 1e6 if total_ms else None


RECORDINGS = {
    "memory snapshot": (
        "traces/memory_snapshots",
        ".pickle",
        "every allocation of the recorded steps on one rank; pytorch.org/memory_viz opens it in the browser",
    ),
    "flops profiler": (
        "traces",
        "flops_profiler.txt",
        "operations of the forward pass by module, of one micro-batch on rank 0, as DeepSpeed counts them",
    ),
    "flight recorder": (
        "hangs/flight_recorder",
        "",
        "the last collectives of one rank when one of them timed out; a pickle for torchfrtrace",
    ),
}
"""Name -> folder below the run, end of a file's name, its meaning."""


def find_recordings(run_dir: Path) -> list[dict[str, Any]]:
    """Return one row per existing recording: `recording`, `what`, and its `files` with their bytes, below the run."""
    rows = []
    for kind, (folder, ending, what) in RECORDINGS.items():
        files = {f"{folder}/{name}": size for name, size in _list_files(run_dir / folder, ending)}
        if files:
            rows.append({"recording": kind, "what": what, "files": files})
    return rows


def _list_files(folder: Path, ending: str) -> list[tuple[str, int]]:
    """Return files in the order of their ranks; empty for a missing or unreadable folder."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.name, entry.stat(follow_symlinks=False).st_size)
                for entry in entries
                if entry.is_file(follow_symlinks=False)
                and entry.name.endswith(ending)
                and entry.name.isprintable()
                and not entry.name.startswith(".")
            ]
    except OSError:
        return []
    return sorted(found, key=lambda file: (len(file[0]), file[0]))


CPU_NOTE = "CPU trace: host operator time, not GPU utilisation"
UNRECORDED_NOTE = "GPU run without its device's activity: host operator time, not GPU utilisation"
RECORDING_NOTE = "No label tells the steps: the whole recording counts as one"
MOST_KERNELS = 30  # names, those with most time over all ranks; tables/kernel_stats.csv has all


def build_frame(facts: RunFacts, findings: Sequence[TraceFinding], note: str) -> dict[str, Any]:
    """Return every key of report.json with its value without traces: lists are empty, and `source` has the value
    None.
    """
    lists = ("parts", "ranks", "steps", "phases", "collectives", "kernels", "copies", "idle")
    return {
        "schema_version": 2,
        "run": facts.origin,
        "source": None,
        "steps_from": None,
        "note": note,
        "backend": facts.origin["backend"],
        "device": facts.origin["device_name"],
        "mean": {"ranks": 0, "steps": 0},
        **{name: [] for name in lists},
        "forecast": compare_parts(facts.step_forecast, []),
        "durations": None,
        "clocks": describe_clocks(Clocks({}, False, None, 0, note)),
        "merged": _describe_merged(build_unmerged(note)) | {"bytes": None},
        "recordings": find_recordings(facts.folder),
        "recommendations": [],
        "phases_present": {},
        "quality": [asdict(finding) for finding in findings],
        "hta": [],
        "hta_ranks": {"ranks": [], "reason": ""},
        "mlflow": {"status": "not configured", "reason": ""},
    }


def build_report(
    facts: RunFacts,
    ranks: Sequence[RankAnalysis],
    findings: Sequence[TraceFinding],
    hta: HtaRun,
    clocks: Clocks,
    merged: Merged,
) -> dict[str, Any]:
    """Return everything except the charts' points and the recommendations. `ranks` is not empty and of one source."""
    source, steps_from = ranks[0].source, ranks[0].steps_from
    of_source = UNRECORDED_NOTE if any(rank.unrecorded for rank in ranks) else CPU_NOTE
    notes = [of_source] * (source == "cpu") + [RECORDING_NOTE] * (steps_from == "recording")
    rows: dict[str, Sequence[Any]] = {
        "steps": [row for rank in ranks for row in rank.rows],
        "phases": [row for rank in ranks for row in rank.phase_rows],
        "collectives": sort_collectives([row for rank in ranks for row in rank.collectives]),
        "kernels": _most_used([row for rank in ranks for row in rank.kernels]),
        "copies": [row for rank in ranks for row in rank.copies],
        "idle": [row for rank in ranks for row in rank.idle],
        "hta": hta.statuses,
    }
    parts = build_parts(ranks)
    return build_frame(facts, findings, ". ".join(notes)) | {
        "source": source,
        "steps_from": steps_from,
        "backend": facts.origin["backend"] or ranks[0].backend,
        "device": facts.origin["device_name"] or ranks[0].device_name,
        "mean": build_mean_row(
            ranks, facts.axes, facts.origin.get("grad_accum_steps") or 1, facts.stages_per_rank
        ),
        "parts": parts,
        "forecast": compare_parts(facts.step_forecast, parts if source == "gpu" else []),
        "ranks": [build_rank_row(rank) for rank in ranks],
        **{name: [asdict(row) for row in found] for name, found in rows.items()},
        "durations": asdict(sum_durations([rank.durations for rank in ranks])) if source == "gpu" else None,
        "clocks": describe_clocks(clocks),
        "merged": _describe_merged(merged),
        "phases_present": {str(rank.rank): rank.phases for rank in ranks},
        "hta_ranks": {"ranks": hta.ranks, "reason": hta.reason},
    }


def _describe_merged(merged: Merged) -> dict[str, Any]:
    return asdict(merged) | {"file": merged.file.name if merged.file else None}


def build_parts(ranks: Sequence[RankAnalysis]) -> list[dict[str, Any]]:
    """Return the parts of the mean step over all ranks and steps, ms; they sum to its length."""
    totals: Counter[tuple[str, str, str]] = Counter()
    for rank in ranks:
        totals.update(rank.parts_ns)
    count = sum(len(rank.rows) for rank in ranks)
    order = list(WORDS)
    return [
        {"part": part, "collective": collective or None, "axis": axis or None, "ms": total_ns / count / 1e6}
        for (part, collective, axis), total_ns in sorted(
            totals.items(), key=lambda e: (order.index(e[0][0]), -e[1])
        )
    ]


def describe_clocks(clocks: Clocks) -> dict[str, Any]:
    """Return how far each rank's clock is ahead of the first rank's, as in report.json."""
    offsets = {str(rank): offset / 1e6 for rank, offset in clocks.offsets_ns.items()}
    return {
        "aligned": clocks.aligned,
        "offsets_ms": offsets,
        "residual_ms": None if clocks.residual_ns is None else clocks.residual_ns / 1e6,
        "matched": clocks.matched,
        "reason": clocks.reason,
    }


def _most_used(rows: Sequence[KernelRow]) -> list[KernelRow]:
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row.name] += row.sum_ms  # type: ignore[assignment]
    names = {name for name, _ in totals.most_common(MOST_KERNELS)}
    return [row for row in rows if row.name in names]
