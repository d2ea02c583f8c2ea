"""The best run for a goal, only among runs that may be compared: fastest, least memory, fastest that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.compare.judging.pareto import MEMORIES, choose_memory
from stratlab.compare.judging.winners import ON_CPU, name_winners
from stratlab.compare.reading.run_rows import is_compared
from stratlab.user_error import UserError

Rows = Sequence[Mapping[str, Any]]


def build_goals(
    rows: Rows, fairness: Mapping[str, Any], memory_limit_gib: float | None = None
) -> dict[str, Any]:
    """Winners per goal.

    Args:
        rows: `runs` of the report.
        fairness: of the audit; nobody is named among runs that are not comparable.
        memory_limit_gib: of one device; None = no such goal.

    Returns:
        memory_limit_gib, fits: [{run, memory_gib, memory, fits (None = unknown)}], and
        groups: [{runs, goals: [{goal, run (None = nobody), reason}]}].

    Raises:
        UserError: the limit is not above 0.
    """
    if memory_limit_gib is not None and not (math.isfinite(memory_limit_gib) and memory_limit_gib > 0):
        raise UserError(
            f"--memory-limit-gib {memory_limit_gib:g}: expected a number above 0 [SL-memory-limit]"
        )
    finished = [row for row in rows if is_compared(row)]
    fits = [] if memory_limit_gib is None else [_judge_fit(row, memory_limit_gib) for row in finished]
    groups = [group for group in fairness["groups"] if len(group) > 1]
    return {
        "memory_limit_gib": memory_limit_gib,
        "fits": fits,
        "groups": [
            {
                "runs": group,
                "goals": _name_all([r for r in finished if r["run"] in group], fits, memory_limit_gib),
            }
            for group in groups
        ],
    }


def _name_all(rows: Rows, fits: Rows, limit: float | None) -> list[dict[str, Any]]:
    winners, reasons = name_winners(rows, {"verdict": "comparable"})
    memory = choose_memory(rows)
    goals = [
        {"goal": "fastest", "run": winners["samples_per_s"], "reason": reasons["samples_per_s"]},
        {
            "goal": "least memory",
            "run": winners[memory],
            "reason": f"{reasons[memory]}; {MEMORIES[memory].partition(' (')[0]}",
        },
    ]
    if limit is not None:
        run, reason = _name_fastest_that_fits(rows, fits)
        goals.append({"goal": f"fastest within {limit:g} GiB per device", "run": run, "reason": reason})
    return goals


def _name_fastest_that_fits(rows: Rows, fits: Rows) -> tuple[str | None, str]:
    judged = {entry["run"]: entry["fits"] for entry in fits}
    if any(row["device_type"] == "cpu" for row in rows):
        return None, ON_CPU
    unknown = [row["run"] for row in rows if judged[row["run"]] is None]
    if unknown:
        return None, f"whether {', '.join(unknown)} would fit is unknown: no device peak was recorded"
    fitting = [row for row in rows if judged[row["run"]]]
    if not fitting:
        return None, "no run fits"
    left_out = [row["run"] for row in rows if not judged[row["run"]]]
    rest = f"; too large: {', '.join(left_out)}" if left_out else ""
    if len(fitting) == 1:
        return fitting[0]["run"], f"the only one that fits{rest}"
    winners, reasons = name_winners(fitting, {"verdict": "comparable"})
    return winners["samples_per_s"], reasons["samples_per_s"] + rest


def _judge_fit(row: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """By the device's peak; without one, what the state holds can only tell that a run does not fit."""
    peak, state = row["peak_memory_gib"], row["state_memory_gib"]
    memory = "peak_memory_gib" if peak is not None else "state_memory_gib"
    fits = peak <= limit if peak is not None else False if state is not None and state > limit else None
    return {"run": row["run"], "memory_gib": row[memory], "memory": memory, "fits": fits}
