"""Memory against throughput: which runs nobody beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.compare.judging.winners import ON_CPU

Rows = Sequence[Mapping[str, Any]]
MEMORIES = {
    "peak_memory_gib": "peak of device memory per rank",
    "state_memory_gib": "memory held by the state per rank (no device peak was recorded by all)",
}


def choose_memory(rows: Rows) -> str:
    """The device's peak where every run has one, else what the state holds."""
    return "peak_memory_gib" if rows and all(row["peak_memory_gib"] for row in rows) else "state_memory_gib"


def build_pareto(rows: Rows, groups: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """One entry for each group of comparable runs.

    A run is on the front when no other one has at least its throughput with at most its memory, and is better in one
    of the two. On CPUs nobody is: their throughput ranks nothing.

    Returns:
        [{memory: key of the rows, memory_is: in words, points: [{run, memory_gib, samples_per_s, front}], front: runs
        by memory, note: why nobody is on it, or empty}]
    """
    found = []
    for group in groups:
        usable = [row for row in rows if row["run"] in group and row["samples_per_s"]]
        memory = choose_memory(usable)
        usable = [row for row in usable if row[memory]]
        if len(usable) < 2:
            continue
        on_cpu = any(row["device_type"] == "cpu" for row in usable)
        front = [] if on_cpu else [row["run"] for row in usable if not _is_beaten(row, usable, memory)]
        points = [
            {
                "run": row["run"],
                "memory_gib": row[memory],
                "samples_per_s": row["samples_per_s"],
                "front": row["run"] in front,
            }
            for row in sorted(usable, key=lambda row: row[memory])
        ]
        found.append(
            {
                "memory": memory,
                "memory_is": MEMORIES[memory],
                "points": points,
                "front": [point["run"] for point in points if point["front"]],
                "note": ON_CPU if on_cpu else "",
            }
        )
    return found


def _is_beaten(row: Mapping[str, Any], rows: Rows, memory: str) -> bool:
    return any(
        other[memory] <= row[memory]
        and other["samples_per_s"] >= row["samples_per_s"]
        and (other[memory] < row[memory] or other["samples_per_s"] > row["samples_per_s"])
        for other in rows
    )
