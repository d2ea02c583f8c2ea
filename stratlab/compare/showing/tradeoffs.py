"""The parts of the page for who has to choose: the best run per goal, memory against throughput, scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

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


def build_goals_html(report: Report) -> Markup:
    """The best run per goal and group, and which runs do not fit."""
    goals, html = report["goals"], Markup("")
    for group in goals["groups"]:
        rows = [
            {
                "goal": entry["goal"],
                "run": badge(entry["run"], "good") if entry["run"] else None,
                "why": entry["reason"],
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
    """The section of memory against throughput, and scaling; none where there is neither."""
    html = Markup("")
    for entry in report["pareto"]:
        html += subtitle("Memory against throughput") + _draw_pareto(entry)
    for series in report["scaling"]:
        html += subtitle(f"{series['strategy']}: {series['kind']} scaling") + _draw_scaling(series)
    return [Section("Memory and scaling", html)] if html else []


def _draw_pareto(entry: Mapping[str, Any]) -> Markup:
    points = {point["run"]: (point["memory_gib"], point["samples_per_s"]) for point in entry["points"]}
    chart = scatter(points, "GiB per rank", "samples per s", front=entry["front"])
    if entry["front"]:
        said = f"On the front, where nobody is both faster and smaller: {', '.join(entry['front'])}."
    else:
        said = f"Nobody is put on the front: {entry['note']}."
    return (
        chart
        + paragraph(said)
        + note(f"Memory: {entry['memory_is']}. Throughput as measured, whatever its noise.")
    )


def _draw_scaling(series: Mapping[str, Any]) -> Markup:
    columns: list[Column | str] = [
        Column("world_size", "world size"),
        "nodes",
        "runs",
        Column("samples_per_s", "samples", "per s", 1),
        Column("samples_per_s_per_device", "per device", "per s", 1),
        Column("scaling_efficiency_pct", "efficiency", "%", 1),
    ]
    rows = [{**point, "runs": ", ".join(point["runs"])} for point in series["points"]]
    curve = [(point["world_size"], point["scaling_efficiency_pct"]) for point in series["points"]]
    first = curve[0][0]
    chart = line_chart(
        {series["strategy"]: curve, "ideal": [(x, 100.0) for x, _ in curve]}, "world size", "efficiency (%)"
    )
    said = note(
        f"{series['what']}. Efficiency: throughput per device, relative to that of {first} "
        f"{'process' if first == 1 else 'processes'}."
    )
    warning = paragraph(badge("CPU", "warn") + f" {series['note']}.") if series["note"] else Markup("")
    return warning + html_table(rows, columns) + chart + said
