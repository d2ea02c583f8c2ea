"""The parts of the page for who has to choose: the best run per goal, memory against throughput, scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from stratlab.compare.judging.scaling import name_series
from stratlab.compare.showing.winner_tiles import NOT_RANKED, shorten_reason
from stratlab.drawing import (
    Column,
    Section,
    badge,
    html_table,
    line_chart,
    note,
    paragraph,
    scatter,
    subtitle,
)

Report = Mapping[str, Any]

SCALING_COLUMNS: tuple[Column | str, ...] = (
    Column("world_size", "world size"),
    "nodes",
    "runs",
    Column("samples_per_s", "samples", "per s", 1),
    Column("samples_per_s_per_device", "per device", "per s", 1),
    Column("speedup", "speed-up", digits=2),
    Column("speedup_noise", "\N{PLUS-MINUS SIGN}", digits=2),
    Column("scaling_efficiency_pct", "efficiency", "%", 1),
    Column("speedup_vs_single", "speed-up against single", digits=2),
    Column("efficiency_vs_single_pct", "efficiency against single", "%", 1),
)


def build_goals_html(report: Report) -> Markup:
    """The best run per goal and group, and which runs do not fit."""
    goals, html = report["goals"], Markup("")
    for group in goals["groups"]:
        rows = [
            {
                "goal": entry["goal"],
                "run": badge(entry["run"], "good") if entry["run"] else None,
                "why": shorten_reason(entry["reason"]),
            }
            for entry in group["goals"]
        ]
        html += subtitle(
            "By goal" if len(goals["groups"]) == 1 else f"By goal, among {', '.join(group['runs'])}"
        )
        html += html_table(rows, ["goal", Column("run", "best run"), "why"])
    if goals["memory_limit_gib"] is not None:
        words = {True: "fits", False: "does not fit", None: "unknown"}
        fits = [
            f"{entry['run']} {words[entry['fits']]}"
            + (f" ({entry['memory_gib']:.3g} GiB)" if entry["memory_gib"] else "")
            for entry in goals["fits"]
        ]
        html += note(f"Within {goals['memory_limit_gib']:g} GiB per device: {', '.join(fits)}.")
    return html


def build_choice(report: Report) -> list[Section]:
    """The section of scaling; none where nothing tells of it."""
    html = Markup("")
    for series in report["scaling"]:
        html += subtitle(f"{name_series(series)}: {series['kind']} scaling") + _draw_scaling(series)
    return [Section("Scaling", html)] if html else []


def draw_pareto(entry: Mapping[str, Any], *, of_several: bool) -> Markup:
    """Speed against memory: one dot per run, and who is on the front.

    Args:
        of_several: there is such a picture of other runs too, so its heading names these.
    """
    of_whom = f": {', '.join(point['run'] for point in entry['points'])}" if of_several else ""
    points = {point["run"]: (point["memory_gib"], point["samples_per_s"]) for point in entry["points"]}
    chart = scatter(points, "GiB per rank", "samples per s", front=entry["front"])
    if entry["front"]:
        said = f"On the front, where nobody is both faster and smaller: {', '.join(entry['front'])}."
    else:
        said = f"No run is put on the front: {NOT_RANKED}."
    return (
        subtitle(f"Speed against memory{of_whom}")
        + chart
        + paragraph(said)
        + note(f"Memory: {entry['memory_is']}. Throughput as measured, whatever its noise.")
    )


def _draw_scaling(series: Mapping[str, Any]) -> Markup:
    rows = [{**point, "runs": ", ".join(point["runs"])} for point in series["points"]]
    known = [
        column
        for column in SCALING_COLUMNS
        if not isinstance(column, Column) or any(row[column.key] is not None for row in rows)
    ]
    strategy, single = name_series(series), series["single"]
    first = series["baseline"] if len(rows) > 1 else 1
    key = "speedup" if len(rows) > 1 else "speedup_vs_single"
    sizes = [row["world_size"] for row in rows]
    start = [] if len(rows) > 1 else [(1, 1.0)]
    lines = {
        strategy: [*start, *((row["world_size"], row[key]) for row in rows)],
        "ideal": [*start, *((size, size / first) for size in sizes)],
    }
    chart = line_chart(lines, "world size", "speed-up")
    said = note(
        f"{series['what']}. Speed-up: throughput against that of "
        + (f"{first} {'process' if first == 1 else 'processes'}" if len(rows) > 1 else "single")
        + "; efficiency: speed-up divided by how many times more processes there are."
        + (f" Against single: {', '.join(single['runs'])}, equal but for the strategy." if single else "")
    )
    return html_table(rows, known) + chart + said
