"""Where and when a run was at work, and what was beside it: facts that follow from more than one file or run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord

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
