"""The step times of a run, from its files: from summary.json, or for an older run by the same rule.

Trainers before this rule wrote means over other steps into summary.json; their metrics.jsonl has the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stratlab.run_directory.files import METRIC, read_lines
from stratlab_spec.timed_steps import TimedSteps, build_step_numbers, find_timed_steps, read_step

NAMES = tuple(build_step_numbers(TimedSteps(()), {}))
BY_RULE = "warmup"
"""In a summary.json whose step times follow the rule."""


def build_numbers(summary: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the names of NAMES, and step_times_from: metrics.jsonl | summary.json | None.

    Args:
        lines: of metrics.jsonl; read only where summary.json does not follow the rule.
    """
    if BY_RULE not in summary and (steps := [*filter(None, map(read_step, lines))]):
        timed = find_timed_steps(steps, summary.get("device_type") != "cpu")
        source = "metrics.jsonl" if timed.steps else None
        return {**build_step_numbers(timed, summary), "step_times_from": source}
    told = {name: summary.get(name) for name in NAMES}
    return {**told, "step_times_from": None if told["step_time_ms_p50"] is None else "summary.json"}


def build_summary(summary: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return `summary`, with the step times of an older run by the rule; empty stays empty."""
    if not summary or BY_RULE in summary:
        return dict(summary)
    numbers = build_numbers(summary, read_lines(folder / "metrics.jsonl", [], METRIC))
    del numbers["step_times_from"]
    return {
        **summary,
        **{name: value for name, value in numbers.items() if name in summary or value is not None},
    }
