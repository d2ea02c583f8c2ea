"""The numbers of a run as MLflow must hold them: what the trainer's sender makes of metrics.jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stratlab.run_directory.files import is_number

NOT_POINTS = ("t", "step", "attempt")  # the fields of a line of metrics.jsonl that the trainer does not send
OF_A_RANK = re.compile(r"rank(\d+)_(.+)")  # in lines of kind system
Point = tuple[int, int, float]
"""Step, time stamp in ms, value: MLflow keeps equal ones once."""


def read_points(lines: Iterable[Mapping[str, Any]]) -> dict[str, set[Point]]:
    """Metric -> points that the trainer's sender makes of the lines of metrics.jsonl."""
    points: dict[str, set[Point]] = {}
    for line in lines:
        for key, value in line.items():
            if key not in NOT_POINTS and is_number(value):
                name = _metric(line.get("kind"), key)
                points.setdefault(name, set()).add((line["step"], int(line["t"] * 1000), float(value)))
    return points


def _metric(kind: str | None, key: str) -> str:
    """`rank3_host_memory_gib` of a system line is system/rank3/host_memory_gib in MLflow."""
    found = OF_A_RANK.fullmatch(key) if kind == "system" else None
    return f"system/rank{found[1]}/{found[2]}" if found else key


def compare_points(expected: Mapping[str, set[Point]], held: Mapping[str, set[Point]]) -> Iterator[str]:
    """One sentence per metric of which MLflow holds fewer points, or others."""
    for key, points in sorted(expected.items()):
        missing, added = len(points - held[key]), len(held[key] - points)
        if missing or added:
            more = f", and {added} that are not in metrics.jsonl" if added else ""
            yield f"{key}: {len(points) - missing} of {len(points)} points are there{more} [SL-verify-mlflow-points]"
