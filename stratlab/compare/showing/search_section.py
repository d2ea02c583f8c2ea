"""The part of the page on a search: every point of it by rank, with the noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.compare.judging.ranking import name_point
from stratlab.drawing import Column, Section, badge, html_table, note, paragraph, stacked_bars
from stratlab.number import format_fact


def build_search_section(report: Mapping[str, Any]) -> list[Section]:
    """One section; none where nothing is varied."""
    search = report.get("search")
    if not search:
        return []
    settings = ", ".join(f"{name}={format_fact(value)}" for name, value in (search["best"] or {}).items())
    html = paragraph(
        (badge(settings, "good") if settings else badge("nobody is named", "warn")) + f" {search['reason']}."
    )
    for remark in search["remarks"]:
        html += paragraph(badge("note", "warn") + f" {remark}.")
    if search["points"]:
        goal = search["goal"]
        bars = {name_point(point): {goal["name"]: point["value"]} for point in search["points"]}
        html += html_table(build_search_rows(search), list_columns(search))
        html += stacked_bars(bars, goal["unit"] or goal["name"])
        html += note(
            f"Varied on purpose: {', '.join(search['varied'])}. Runs with equal values of these are one point: "
            "strategies compute the same training, seeds are its repeats, and several runs of one seed count once. "
            f"Noise: {search['noise']['method']}; {search['noise']['degrees']} degrees of freedom. What was learnt "
            "does not depend on how fast the hardware is; where the numbers come from stands at the head of the page."
        )
    for entry in search["left_out"]:
        html += note(f"Not ranked: {entry['run']}, {entry['why']}.")
    return [Section("Search", html)]


def build_search_rows(search: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One flat row for each point, best first."""
    return [
        {
            **point,
            **{f"setting {name}": format_fact(value) for name, value in point["settings"].items()},
            "runs": ", ".join(point["runs"]),
            "strategies": ", ".join(point["strategies"]),
            "behind": point["behind"] if point["place"] > 1 else None,
            "noise": point["noise"] if point["place"] > 1 else None,
            "apart": None if point["place"] == 1 else "no" if point["within_noise"] else "yes",
        }
        for point in search["points"]
    ]


def list_columns(search: Mapping[str, Any]) -> list[Column | str]:
    """Of the table of points."""
    goal = search["goal"]
    also = [
        Column(name, name.removesuffix("_pct").replace("_", " "), "%" if name.endswith("_pct") else "", 2)
        for name in ("test_accuracy_pct", "test_perplexity")
        if name != goal["key"] and any(point[name] is not None for point in search["points"])
    ]
    return [
        "place",
        *(Column(f"setting {name}", name) for name in search["varied"]),
        Column("value", goal["name"], goal["unit"]),
        "seeds",
        Column("behind", "behind the best", goal["unit"]),
        Column("noise", "noise of that", goal["unit"]),
        Column("apart", "told apart from the best"),
        *also,
        Column("samples_seen", "samples seen"),
        "strategies",
        "runs",
    ]
