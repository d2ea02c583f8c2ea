"""Two steps subtracted: rows that sum to the difference of the measured step times.

Exposed communication E of a collective is its total C minus what is hidden H. So dE = dC - dH: `more communication` is
dC, `less overlap` is -dH. Where the two go against each other (more is sent, and some of that is hidden), the smaller
is netted into the larger: hiding a part of what is new is no gain over a run that does not send it. The sum stays dE.
"""

from __future__ import annotations

from typing import Any

from stratlab.compare.explaining.causes import NOT_TRACED, SAME_BYTES
from stratlab.compare.explaining.traced_step import TracedStep, Where

PARTS = ("compute", "straggler", "copies", "data", "host", "idle", "bubble")


def build_differences(run: TracedStep, base: TracedStep, measured_ms: float) -> list[dict[str, Any]]:
    """Rows {cause, collective, axis, why, ms, run_ms, baseline_ms}; their `ms` sum to `measured_ms`.

    Of a collective run_ms and baseline_ms are what is exposed; its difference may be split over two rows.

    Args:
        measured_ms: the run's median step time minus the baseline's, untraced. The last row is what the traced
            steps do not show of it.
    """
    rows = []
    for key in _align(run, base):
        rows += _split(key, run, base)
    for part in dict.fromkeys([*PARTS, *run.parts, *base.parts]):
        mine, other = run.parts.get(part, 0.0), base.parts.get(part, 0.0)
        rows.append(_row(part, mine - other, mine, other))
    rows = [row for row in rows if row["run_ms"] or row["baseline_ms"] or row["ms"]]
    remainder = measured_ms - sum(row["ms"] for row in rows)
    return [*rows, _row(NOT_TRACED, remainder, None, None)]


def split_exposed(total: tuple[float, float], exposed: tuple[float, float]) -> tuple[float, float]:
    """(more communication, less overlap) of (run, baseline); the sum is the difference of the exposed."""
    more = total[0] - total[1]
    less = (exposed[0] - exposed[1]) - more
    if more * less >= 0:
        return more, less
    return (more + less, 0.0) if abs(more) >= abs(less) else (0.0, more + less)


def _align(run: TracedStep, base: TracedStep) -> list[Where]:
    """Collectives of both. The axis counts where one of the runs has a collective on several."""
    keys = [*run.exposed, *base.exposed]
    several = {
        name
        for step in (run, base)
        for name, _ in step.exposed
        if len({axis for found, axis in step.exposed if found == name}) > 1
    }
    return list(dict.fromkeys((name, axis if name in several else "") for name, axis in keys))


def _split(key: Where, run: TracedStep, base: TracedStep) -> list[dict[str, Any]]:
    mine, other = (step.merged(key, step.exposed) or 0.0 for step in (run, base))
    totals = [
        step.merged(key, step.total) if step.merged(key, step.exposed) is not None else 0.0
        for step in (run, base)
    ]
    axes = {axis for step in (run, base) for name, axis in step.exposed if name == key[0]}
    place = {"collective": key[0], "axis": key[1] or (axes.pop() if len(axes) == 1 else "")}
    if totals[0] is None or totals[1] is None:  # without totals it cannot be told why more is exposed
        return [_row("more_communication", mine - other, mine, other) | place | {"why": "exposed"}]
    more, less = split_exposed((totals[0], totals[1]), (mine, other))
    place["why"] = _why(key, run, base)
    rows = [_row("more_communication", more, mine, other), _row("less_overlap", less, mine, other)]
    return [row | place for row in rows if row["ms"]]


def _why(key: Where, run: TracedStep, base: TracedStep) -> str:
    """bytes: another volume; link: the same in another time; new: only one has it; empty: unknown."""
    if any(step.merged(key, step.exposed) is None for step in (run, base)):
        return "new"
    mine, other = (step.merged(key, step.sent_bytes) for step in (run, base))
    if not mine or not other:
        return ""
    return "link" if abs(mine - other) <= SAME_BYTES * max(mine, other) else "bytes"


def _row(cause: str, ms: float, run_ms: float | None, baseline_ms: float | None) -> dict[str, Any]:
    return {
        "cause": cause,
        "collective": None,
        "axis": None,
        "why": None,
        "ms": ms,
        "run_ms": run_ms,
        "baseline_ms": baseline_ms,
    }
