"""The part of the page on tuning: what was tried for each strategy, what it gave, what was taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from stratlab.compare.judging.tuned import name_knobs, name_search, say_choice
from stratlab.compare.showing.verdict import describe_processes, either
from stratlab.drawing import Column, Section, badge, html_table, note, paragraph, subtitle
from stratlab.number import format_count


def build_tuning(report: Mapping[str, Any]) -> list[Section]:
    """One section; none where no sweep has tuned."""
    tuning = report.get("tuning")
    if not tuning:
        return []
    metric, origin = tuning["metric"], tuning["origin"]
    html = paragraph(
        f"By {metric['name']} ({'highest' if metric['highest'] else 'lowest'} is best), one knob at a time, at most "
        f"{tuning['candidates']} candidates for each combination; {tuning['steps']} steps and "
        f"{format_count(tuning['repeats'], 'repeat')} of each, in the comparison {tuning['tuning']}. "
        f"Measured on {either(origin['hardware'])} "
        f"({either(origin['device'])}), backend {either(origin['backend'])}, "
        f"{describe_processes(origin)}, "
        f"{either(origin['measured_steps'])} steps timed."
    )
    for search in tuning["searches"]:
        html += subtitle(name_search(search)) + _show(search, metric)
    html += note(
        "Every other setting is that of the comparison, but the length, the learning rate's warm-up and the profile. "
        "A candidate is taken for a lead that exceeds the noise, or 2 % without repeats. Leads are told against the "
        "strategy as it comes; where several knobs were taken, each was judged against the best before it."
    )
    return [Section("Tuning", html)]


def _show(search: Mapping[str, Any], metric: Mapping[str, Any]) -> Markup:
    if search["why_not"]:
        html = paragraph(badge("not tuned", "bad") + f" {search['why_not']}.")
    else:
        html = paragraph(badge("tuned", "good") + f" {say_choice(search)}.")
    rows = [
        {
            "candidate": name_knobs(each["knobs"]),
            "taken": badge("taken", "good") if _is_taken(search, each) else None,
            "value": each["value"],
            "repeats": len(each["values"]),
            "lead_pct": each["lead_pct"] if each["knobs"] else None,
            "noise_pct": each["noise_pct"] if each["measured_noise"] and each["knobs"] else None,
            "why": each["why"] or None,
            "runs": ", ".join(each["runs"]),
        }
        for each in search["tried"]
    ]
    columns: list[Column | str] = [
        "candidate",
        "taken",
        Column("value", metric["key"], metric["unit"]),
        "repeats",
        Column("lead_pct", "better than as it comes", "%", 1),
        Column("noise_pct", "noise of that", "%", 1),
        Column("why", "out, because"),
        "runs",
    ]
    return html + html_table(rows, columns) if rows else html


def _is_taken(search: Mapping[str, Any], candidate: Mapping[str, Any]) -> bool:
    return not search["why_not"] and candidate["knobs"] == search["chosen"]
