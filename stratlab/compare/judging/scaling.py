"""Scaling: what remains of the throughput per device when there are more of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.judging.variants import build_variants
from stratlab.run_directory.record import RunRecord

# facts that follow from the number of processes
PLACE = {"world_size", "nodes", "processes_per_node", "reduction dtypes", "ranks on each node"}
LENGTH = {"resolved.steps", "steps done", "resolved.profile_first_step"}
SHARED_CORES = "the processes share the cores of one machine: this says nothing about GPUs"


@dataclass(frozen=True)
class Kind:
    """A way to grow. `free`: facts that follow from the world size in it, besides PLACE."""

    name: str
    what: str
    free: frozenset[str]


KINDS = (
    Kind("strong", "the same global batch, fewer accumulations", frozenset({"grad_accum_steps"})),
    Kind("strong", "the same global batch, smaller micro-batches", frozenset({"micro_batch_size"})),
    Kind(
        "weak",
        "the same micro-batch per device, a larger global batch",
        frozenset({"global_batch_size", *LENGTH}),
    ),
)


def build_scaling(runs: Sequence[RunRecord], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Series of runs that differ only in the world size and what follows from it.

    scaling_efficiency_pct = 100 x (samples_per_s / world_size) / (the same of the fewest devices of the series).

    Returns:
        [{strategy, kind strong|weak, what, note, points: [{world_size, nodes, runs, samples_per_s (median of repeats),
        samples_per_s_per_device, scaling_efficiency_pct}]}], for series of two world sizes and more.
    """
    by_name = {row["run"]: row for row in rows}
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        for group in build_variants(runs, PLACE | kind.free, with_axes=False):
            members = [by_name[run.name] for run in group]
            points = _build_points([row for row in members if row["samples_per_s"] and row["world_size"]])
            if any(series["points"] == points for series in found):
                continue
            if len(points) > 1 and (kind.name == "strong" or _grows_along(members)):
                on_cpu = any(row["device_type"] == "cpu" for row in members)
                found.append(
                    {
                        "strategy": members[0]["strategy"],
                        "kind": kind.name,
                        "what": kind.what,
                        "note": SHARED_CORES if on_cpu else "",
                        "points": points,
                    }
                )
    return found


def _build_points(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    for size in sorted({row["world_size"] for row in rows}):
        here = [row for row in rows if row["world_size"] == size]
        speed = statistics.median(row["samples_per_s"] for row in here)
        points.append(
            {
                "world_size": size,
                "nodes": max((row["nodes"] or 1 for row in here), default=1),
                "runs": [row["run"] for row in here],
                "samples_per_s": speed,
                "samples_per_s_per_device": speed / size,
                "scaling_efficiency_pct": 100.0
                * (speed / size)
                / (points[0]["samples_per_s_per_device"] if points else speed / size),
            }
        )
    return points


def _grows_along(rows: Sequence[Mapping[str, Any]]) -> bool:
    """The global batch is proportional to the world size."""
    shares = {
        row["global_batch_size"] / row["world_size"]
        for row in rows
        if row["global_batch_size"] and row["world_size"]
    }
    return len(shares) == 1
