"""How a run uses its processes: axes, what its name promises, bytes over each axis, what each stage holds.

Where and when a run was at work, and what was beside it: facts that follow from more than one file or run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord

STATE = ("parameters", "gradients", "optimizer")
PEAKS = ("peak_memory_gib", "peak_host_memory_gib")
KINDS = {"pp": "pp_schedule", "cp": "cp_kind"}  # axis -> the setting that says how it works


def build_layout(run: RunRecord) -> dict[str, Any]:
    """The layout of one run; None or empty where the strategy has none.

    Returns:
        layout (pp2.dp2.tp2+sp), dimensions, degenerate, missing_dimensions, sequence_parallel, layout_reason,
        pp_schedule and cp_kind (of an axis above 1), wire_bytes_per_axis {axis: bytes that the busiest rank sends in a
        step}, collectives_per_axis {axis: {collective: calls of the rank with most in a step}}, and stages: see
        `build_stages`.
    """
    settings, resolved = run.config.get("config", {}), run.config.get("resolved", {})
    layout, axes = (_mapping(resolved.get(name)) for name in ("layout", "axes"))

    def read(name: str, key: str) -> Any:
        return layout[key] if layout.get(key) is not None else run.summary.get(name)

    sent = _mapping(run.summary.get("wire_bytes_per_axis"))
    return {
        "layout": read("layout", "name"),
        "dimensions": read("dimensions", "dimensions"),
        "degenerate": run.degenerate,
        "missing_dimensions": run.missing_dimensions,
        "sequence_parallel": read("sequence_parallel", "sequence_parallel"),
        "layout_reason": layout.get("reason"),
        **{kind: settings.get(kind) if (axes.get(axis) or 1) > 1 else None for axis, kind in KINDS.items()},
        "wire_bytes_per_axis": {axis: size for axis, size in sent.items() if is_number(size)},
        "collectives_per_axis": _count_collectives(run.ranks),
        "stages": build_stages(run.ranks) if layout else [],
    }


def build_stages(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the ranks of each stage of the pipeline hold: the rank with most of each.

    Returns:
        [{stage, ranks, parameters, gradients, optimizer, state (GiB), peak_memory_gib, peak_host_memory_gib}]; None
        where a rank does not tell.
    """
    by_stage: dict[int, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        stage = _mapping(rank.get("coordinates")).get("pp")
        if isinstance(stage, int):
            by_stage.setdefault(stage, []).append(rank)
    return [
        {
            "stage": stage,
            "ranks": len(members),
            **{kind: _largest(_held(rank, kind) for rank in members) for kind in STATE},
            "state": _largest(_sum([_held(rank, kind) for kind in STATE]) for rank in members),
            **{name: _largest(rank.get(name) for rank in members) for name in PEAKS},
        }
        for stage, members in sorted(by_stage.items())
    ]


def find_repeated_layouts(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Layout -> runs that asked for other numbers of dimensions and got the same one."""
    found: dict[str, dict[Any, str]] = {}
    for row in rows:
        if row["layout"]:
            found.setdefault(row["layout"], {}).setdefault(row["dimensions"], row["run"])
    return {layout: list(asked.values()) for layout, asked in found.items() if len(asked) > 1}


def _count_collectives(ranks: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    most: dict[str, dict[str, int]] = {}
    for rank in ranks:
        for axis, kinds in _mapping(rank.get("collectives_per_axis")).items():
            for kind, counted in _mapping(kinds).items():
                count = counted[0] if isinstance(counted, list) and counted else None
                if is_number(count):
                    of_axis = most.setdefault(axis, {})
                    of_axis[kind] = max(of_axis.get(kind, 0), int(count))
    return most


def _held(rank: Mapping[str, Any], kind: str) -> float | None:
    value = _mapping(rank.get("state_memory_gib")).get(kind)
    return float(value) if is_number(value) else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _largest(values: Iterable[Any]) -> float | None:
    """None where one of them is not known: it could be the largest."""
    found = list(values)
    return max(found) if found and all(is_number(value) for value in found) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


Window = tuple[float, float]  # seconds since 1970

FULL_CLOCK_PCT = 95.0
"""A GPU that reached this share of its highest clock at least once was not held below it."""
CLOCK_CLASS_PCT = 5.0
"""GPUs that were held lower are told apart in steps of this."""
SLOWED_PCT = 1.0
"""Of the seconds of a run: heat or a power brake for longer than this matters."""


def apply_place(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The records with `place`: None where a run does not tell.

    nodes              names of the machines, sorted
    ranks_per_node     how many ranks each machine had, sorted: two pods may be on one node or on two
    beside             names of the runs, of these, that were alive on one of its nodes while its steps were timed, or
                       "none"
    clock              how fast its slowest GPU was seen to be: "full", "about 60 % of 1,980 MHz", "no GPU"
    slowed             for how much of the time its hottest GPU held itself back: "none seen", "12 % of the time"
    """
    return [
        dataclasses.replace(run, place=_read_place(run, [other for other in runs if other is not run]))
        for run in runs
    ]


def _read_place(run: RunRecord, others: Sequence[RunRecord]) -> dict[str, Any]:
    nodes = [rank.get("node") for rank in run.ranks]
    known = bool(nodes) and all(nodes)
    return {
        "nodes": sorted(set(map(str, nodes))) if known else None,
        "ranks_per_node": sorted(Counter(nodes).values(), reverse=True) if known else None,
        "beside": _find_beside(run, others),
        **_read_gpus([rank.get("gpu") for rank in run.ranks], run),
    }


def _find_beside(run: RunRecord, others: Sequence[RunRecord]) -> str | None:
    """A run that has begun elsewhere, or when this one had made its last step, has taken nothing from it."""
    nodes, steps = _read_nodes(run), _find_steps(run)
    if nodes is None or not steps:
        return None
    found = []
    for other in others:
        if not any(_overlap(mine, theirs) for mine in steps for theirs in _find_lives(other)):
            continue
        its_nodes = _read_nodes(other)
        if its_nodes is None:
            return None
        if nodes & its_nodes:
            found.append(other.name)
    return ", ".join(sorted(found)) or "none"


def _read_nodes(run: RunRecord) -> set[str] | None:
    """Of all attempts; None if one of them does not tell."""
    started = [line.get("nodes") for line in run.attempts if line.get("event") == "started"]
    if not started or not all(isinstance(nodes, list) and nodes for nodes in started):
        return None
    return {str(node) for nodes in started for node in nodes or []}


def _find_steps(run: RunRecord) -> list[Window]:
    """From the beginning of the first step that was written to the end of the last one; without any, its lives."""
    lines = [line for line in run.metrics if line.get("kind") == "train" and is_number(line.get("t"))]
    if not lines:
        return _find_lives(run)
    first = min(lines, key=lambda line: line["t"])
    took_ms = first.get("step_time_ms")
    began = first["t"] - (took_ms / 1e3 if is_number(took_ms) else 0.0)
    return [(began, max(line["t"] for line in lines))]


def _find_lives(run: RunRecord) -> list[Window]:
    """From start to end of each attempt; one that has not ended lives as long as it has written."""
    written = [line["t"] for line in run.metrics if is_number(line.get("t"))]
    lives = []
    for i, line in enumerate(run.attempts):
        if line.get("event") != "started" or not is_number(line.get("t")):
            continue
        later = run.attempts[i + 1]["t"] if i + 1 < len(run.attempts) else None
        end = later if is_number(later) else max([line["t"], *written])
        lives.append((line["t"], end))
    return lives


def _overlap(a: Window, b: Window) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _read_gpus(found: Sequence[Any], run: RunRecord) -> dict[str, Any]:
    gpus = [gpu for gpu in found if isinstance(gpu, dict)]
    if len(gpus) != len(found) or not gpus:
        on_cpu = run.config.get("resolved", {}).get("device_type") == "cpu"
        return {"clock": "no GPU" if on_cpu else None, "slowed": "none seen"}
    slowed = max((gpu["slowed_pct"] for gpu in gpus if is_number(gpu.get("slowed_pct"))), default=0.0)
    return {
        "clock": _classify_clock(gpus),
        "slowed": f"{slowed:.0f} % of the time" if slowed > SLOWED_PCT else "none seen",
    }


def _classify_clock(gpus: Sequence[dict[str, Any]]) -> str | None:
    pairs = [(gpu.get("highest_clock_mhz"), gpu.get("clock_limit_mhz")) for gpu in gpus]
    shares = [(100 * a / b, b) for a, b in pairs if is_number(a) and is_number(b) and b]
    if len(shares) != len(pairs):
        return None
    share, limit = min(shares)
    if share >= FULL_CLOCK_PCT:
        return "full"
    return f"about {CLOCK_CLASS_PCT * round(share / CLOCK_CLASS_PCT):.0f} % of {limit:,.0f} MHz"
