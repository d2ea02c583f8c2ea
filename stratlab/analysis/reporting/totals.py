"""The numbers that stand for a whole rank or a whole run, beside the means of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.analysis.measuring import gaps
from stratlab.analysis.measuring.bandwidth import CopyRow
from stratlab.analysis.measuring.kernels import build_sum, find_median, find_short_share
from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.measuring.step_rows import build_means
from stratlab.run_directory.late_rank import find_late_rank

COPIES = {"HtoD": "h2d_gbps", "DtoH": "d2h_gbps", "DtoD": "d2d_gbps"}


def build_rank_row(rank: RankAnalysis) -> dict[str, Any]:
    """Means of its steps, its kernels, copies and memory; None = the trace does not tell."""
    return {
        "rank": rank.rank,
        "host": rank.host,
        "steps": len(rank.rows),
        **build_means(rank.rows),
        **_describe([rank]),
    }


def build_mean_row(
    ranks: Sequence[RankAnalysis], axes: Mapping[str, int], micro_batches: int
) -> dict[str, Any]:
    """The same over all ranks, and how even they are. Memory: the rank with most.

    `bubble_ideal_pct` of p stages and m micro-batches is (p - 1) / (m + p - 1), as for GPipe and 1F1B (Narayanan et
    al. 2021, https://arxiv.org/abs/2104.04473).
    """
    rows = [row for rank in ranks for row in rank.rows]
    compute = {rank.rank: sum(row.compute_ms for row in rank.rows) / len(rank.rows) for rank in ranks}
    pp = axes.get("pp", 1)
    mean = statistics.fmean(compute.values())
    return {
        "ranks": len(ranks),
        "steps": len({row.step for row in rows}),
        **build_means(rows),
        "bubble_ideal_pct": 100 * (pp - 1) / (micro_batches + pp - 1) if pp > 1 else None,
        **_describe(ranks),
        "compute_imbalance": max(compute.values()) / mean if mean else None,
        "slowest_rank": find_late_rank(
            map(vars, rows), (vars(c) for rank in ranks for c in rank.collectives)
        ),
    }


def _describe(ranks: Sequence[RankAnalysis]) -> dict[str, Any]:
    steps = sum(len(rank.rows) for rank in ranks)
    on_gpu = ranks[0].source == "gpu"
    durations = build_sum([rank.durations for rank in ranks]).kernels
    sizes = [row.bytes for rank in ranks for row in rank.collectives]
    talked = [size for size in sizes if size is not None]
    device = [point for rank in ranks for point in rank.memory if point.device != "cpu"]
    reserved = [point.reserved_mib for point in device if point.reserved_mib is not None]
    sizes_gib = [rank.device_memory_gib for rank in ranks if rank.device_memory_gib is not None]
    waiting = gaps.build_sum([rank.gaps for rank in ranks])
    counted = [rank.allocations for rank in ranks if rank.allocations is not None]
    return {
        "gap_kind": waiting.kind,
        "gap_label": waiting.label,
        "short_gap_pct": 100 * waiting.short / waiting.whole if waiting.whole else None,
        "first_gap_pct": 100 * waiting.first / waiting.whole if waiting.whole else None,
        "longest_gap_ms": waiting.longest / 1e6 if waiting.whole else None,
        "kernels_per_step": sum(rank.durations.in_steps for rank in ranks) / steps if on_gpu else None,
        "kernel_us_p50": find_median(durations) if on_gpu else None,
        "short_kernel_pct": find_short_share(durations) if on_gpu else None,
        **{name: _rate([c for rank in ranks for c in rank.copies], kind) for kind, name in COPIES.items()},
        "comm_bytes_per_step": sum(talked) / steps if talked and len(talked) == len(sizes) else None,
        "peak_allocated_gib": max(p.allocated_mib for p in device) / 1024 if device else None,
        "peak_reserved_gib": max(reserved) / 1024 if reserved else None,
        "device_memory_gib": min(sizes_gib) if sizes_gib else None,
        "unrecorded_launches": None if on_gpu else sum(rank.unrecorded for rank in ranks),
        "allocations_per_step": sum(counted) / steps if counted else None,
    }


def _rate(copies: Sequence[CopyRow], kind: str) -> float | None:
    """Bytes over time of all copies of one kind, GB/s; 1 GB/s = 1e6 bytes per ms."""
    mine = [copy for copy in copies if copy.kind == kind and copy.bytes is not None]
    total_ms = sum(copy.total_ms for copy in mine)
    return sum(copy.bytes or 0 for copy in mine) / total_ms / 1e6 if total_ms else None
