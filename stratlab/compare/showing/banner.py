"""The banner at the head of the page: where the numbers come from, and what they can and cannot say. No section says it
again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.judging.winners import LEAST_LEAD_PCT, ON_CPU, ONE_REPEAT
from stratlab.compare.reading.run_rows import is_compared
from stratlab.compare.showing.verdict import describe_origin
from stratlab.drawing import loud
from stratlab.number import format_number

FEW_STEPS = 10
"""Timed steps of a run below which its median may be chance."""
UNSTEADY = 3.0
"""Times the median that one step in twenty takes or exceeds: from here on something else was at work."""
HOLDS = "What is counted holds on any hardware: memory held by the state, bytes and calls, losses"
ON_HOST = (
    "Traces without GPU events show the host's operators, and ranks on shared cores wait for each other's computation, "
    "too: parts and shares of a step say nothing about GPUs"
)
NO_BAND = f"Differences below {LEAST_LEAD_PCT:g} % count as none"


def build_banner(report: Mapping[str, Any]) -> list[str | Markup]:
    """Sentences, those first that weigh most."""
    rows = report["runs"]
    few = say_few_steps(rows)
    compared = [row for row in rows if is_compared(row)]
    more = {ON_CPU: HOLDS, ONE_REPEAT: NO_BAND}
    said = [describe_origin(report, versions=False)]
    for remark, limit in zip(report["remarks"], say_limits(report), strict=True):
        said.append(f"{limit} {more[remark]}." if remark in more else limit)
    if any(row["trace_source"] == "cpu" for row in compared):
        said.append(f"{ON_HOST}.")
    said += [f"{note[:1].upper()}{note[1:]}." for note in _list_scaling_notes(report)]
    if unsettled := [row["run"] for row in rows if row["warmup"] and not row["warmup"]["settled"]]:
        said.append(
            f"Still changing when half of the steps were left out, or too short to tell: {', '.join(unsettled)}."
        )
    return [*map(loud, filter(None, (few, say_unsteady(rows)))), *said]


def say_few_steps(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of which runs so few steps are timed that a median of them may be chance; "" where there are enough."""
    counts = {row["run"]: row["measured_steps"] for row in rows if is_compared(row)}
    few = {run: count for run, count in counts.items() if count is not None and 0 < count < FEW_STEPS}
    if not few:
        return ""
    if len(few) == len(counts) and len(set(few.values())) == 1:
        count = next(iter(few.values()))
        said = (
            f"Only {format_number(count)} step{'s' * (count > 1)} of {'each' if len(few) > 1 else 'the'} run"
        )
    else:
        said = f"Only a few steps ({', '.join(f'{run} {count}' for run, count in few.items())})"
    verb = "is" if said.startswith("Only 1 ") else "are"
    return f"{said} {verb} timed: a time from so few can be chance. Train longer before you trust one."


def say_unsteady(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whose steps are so uneven that another start may give another answer; "" where none is."""
    found = {
        row["run"]: row["step_time_ms_p95"] / row["step_time_ms_p50"]
        for row in rows
        if is_compared(row) and row["step_time_ms_p95"] and row["step_time_ms_p50"]
    }
    uneven = {run: ratio for run, ratio in found.items() if ratio >= UNSTEADY}
    if not uneven:
        return ""
    told = ", ".join(f"{run} {format_number(ratio, 0)}" for run, ratio in uneven.items())
    return (
        f"One step in twenty takes several times the median or more ({told} times): other programs were at work, or "
        "network or data stood still now and then. Start it again on a quiet machine before you trust a time."
    )


def say_limits(report: Mapping[str, Any]) -> list[str]:
    """The remarks of the report, a sentence each. A run's name stays as it is."""
    runs = {row["run"] for row in report["runs"]}
    return [
        f"{remark}." if remark.split()[0].rstrip(",:") in runs else f"{remark[:1].upper()}{remark[1:]}."
        for remark in report["remarks"]
    ]


def _list_scaling_notes(report: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(series["note"] for series in report["scaling"] if series["note"]))
