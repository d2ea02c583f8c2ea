"""Scaling: how much faster more devices are, and what remains of the throughput of each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.judging.noise import Band
from stratlab.compare.judging.variants import build_variants, is_same_but_strategy
from stratlab.run_directory.record import RunRecord

# facts that follow from the number of processes
PLACE = {"world_size", "nodes", "processes_per_node", "reduction dtypes", "ranks on each node"}
LENGTH = {"resolved.steps", "steps done", "resolved.profile_first_step"}
Rows = Sequence[Mapping[str, Any]]
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


def build_scaling(runs: Sequence[RunRecord], rows: Rows, band: Band | None = None) -> list[dict[str, Any]]:
    """Series of runs that differ only in the world size and what follows from it.

    speedup = samples_per_s / that of the fewest devices of the series; scaling_efficiency_pct = 100 x speedup / (world
    size / the fewest). The same against `single` runs that differ in nothing else but the strategy, where there are
    any: then one world size is a series already, and what it would say of itself is None.

    Args:
        band: of the median step times; None = no repeats.

    Returns:
        [{strategy, kind strong|weak, what, note, baseline (world size of the fewest devices), single: {runs,
        samples_per_s} or None, backend, hardware, measured_steps (of the run with fewest), repeats (of the point with
        fewest), points: [{world_size, nodes, runs, samples_per_s (median of repeats), samples_per_s_per_device,
        speedup, speedup_noise (half width, None without repeats), scaling_efficiency_pct, speedup_vs_single,
        efficiency_vs_single_pct}]}].
    """
    by_name = {row["run"]: row for row in rows}
    alone = [run for run in runs if run.is_compared and run.strategy == "single"]
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        aside = PLACE | kind.free
        for group in build_variants(runs, aside, with_axes=False):
            members = [by_name[run.name] for run in group]
            timed = [row for row in members if row["samples_per_s"] and row["world_size"]]
            single = [
                by_name[run.name]
                for run in alone
                if run not in group and is_same_but_strategy(run, group[0], aside)
            ]
            single = [row for row in single if row["samples_per_s"]]
            points = _build_points(timed, single, band)
            if any(series["points"] == points for series in found):
                continue
            grown = kind.name == "strong" or _grows_along([*members, *single])
            on_several = any(
                point["world_size"] > 1 for point in points
            )  # strategies on one device scale nothing
            if (len(points) > 1 or (points and single)) and on_several and grown:
                found.append(_describe(kind, timed, single, points))
    return found


def _describe(kind: Kind, rows: Rows, single: Rows, points: list[dict[str, Any]]) -> dict[str, Any]:
    on_cpu = any(row["device_type"] == "cpu" for row in rows)
    steps = [row["measured_steps"] for row in [*rows, *single] if row["measured_steps"]]
    return {
        "strategy": rows[0]["strategy"],
        "kind": kind.name,
        "what": kind.what,
        "note": SHARED_CORES if on_cpu else "",
        "baseline": points[0]["world_size"],
        "single": {
            "runs": [row["run"] for row in single],
            "samples_per_s": statistics.median(row["samples_per_s"] for row in single),
        }
        if single
        else None,
        "backend": rows[0]["backend"],
        "hardware": rows[0]["device_name"],
        "measured_steps": min(steps, default=None),
        "repeats": min(len(point["runs"]) for point in points),
        "points": points,
    }


def _build_points(rows: Rows, single: Rows, band: Band | None) -> list[dict[str, Any]]:
    by_size = {
        size: [row for row in rows if row["world_size"] == size]
        for size in sorted({row["world_size"] for row in rows})
    }
    speeds = {size: statistics.median(row["samples_per_s"] for row in here) for size, here in by_size.items()}
    alone = statistics.median(row["samples_per_s"] for row in single) if single else None
    points: list[dict[str, Any]] = []
    for size, here in by_size.items():
        fewest = min(by_size)
        speedup = speeds[size] / speeds[fewest] if len(by_size) > 1 else None
        against = speeds[size] / alone if alone else None
        points.append(
            {
                "world_size": size,
                "nodes": max((row["nodes"] or 1 for row in here), default=1),
                "runs": [row["run"] for row in here],
                "samples_per_s": speeds[size],
                "samples_per_s_per_device": speeds[size] / size,
                "speedup": speedup,
                "speedup_noise": _find_noise(band, speedup, len(here), len(by_size[fewest]))
                if size != fewest
                else None,
                "scaling_efficiency_pct": None if speedup is None else 100 * speedup * fewest / size,
                "speedup_vs_single": against,
                "efficiency_vs_single_pct": None if against is None else 100 * against / size,
            }
        )
    return points


def _find_noise(band: Band | None, speedup: float | None, repeats: int, of_baseline: int) -> float | None:
    """Half width around the quotient of two medians."""
    if band is None or speedup is None:
        return None
    return speedup * band.of_difference(1.0, 1.0, repeats, of_baseline)


def _grows_along(rows: Rows) -> bool:
    """The global batch is proportional to the world size."""
    shares = {
        row["global_batch_size"] / row["world_size"]
        for row in rows
        if row["global_batch_size"] and row["world_size"]
    }
    return len(shares) == 1


def say_scaling(scaling: Sequence[Mapping[str, Any]]) -> list[str]:
    """`ddp, strong scaling, 1 -> 4: 3.1 +- 0.1 times as fast (efficiency 78 %)`, and against `single`."""
    said = []
    for series in scaling:
        last, kind = series["points"][-1], f"{series['strategy']}, {series['kind']} scaling"
        cpu = f"; {series['note']}" if series["note"] else ""
        if last["speedup"] is not None:
            noise = f" \N{PLUS-MINUS SIGN} {last['speedup_noise']:.2g}" if last["speedup_noise"] else ""
            said.append(
                f"{kind}, {series['baseline']} -> {last['world_size']}: {last['speedup']:.3g}{noise} times as fast, "
                f"efficiency {last['scaling_efficiency_pct']:.0f} %{cpu}"
            )
        if last["speedup_vs_single"] is not None:
            said.append(
                f"{kind}, single -> {last['world_size']}: {last['speedup_vs_single']:.3g} times as fast, "
                f"efficiency {last['efficiency_vs_single_pct']:.0f} %{cpu}"
            )
    return said
