"""The section of the page about collectives: what they cost, and who kept the others waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratlab.analysis.pages.part_names import describe_collective
from stratlab.analysis.pages.summaries import build_collective_summary
from stratlab.analysis.pages.time_sections import MOST_ROWS, cut_note
from stratlab.drawing import Column, Section, details, html_table, note, stacked_bars
from stratlab.number import format_number
from stratlab.run_directory.step_parts import COLOURS

MOST_COLLECTIVES = 20
HIDDEN = "hidden under compute"
PALETTE = COLOURS | {HIDDEN: COLOURS["compute"]}


def build_collectives(report: dict[str, Any], chosen: Sequence[int]) -> Section:
    """Means per rank over all recorded steps; the rows of single ranks are folded."""
    title, rows = "Communication against computation", build_collective_summary(report)
    if not rows:
        return Section(title, nothing="no communication was recorded")
    bars = {}
    for row in rows[:MOST_COLLECTIVES]:
        label = row["collective"] if row["collective"] not in bars else f"{row['collective']}, {row['name']}"
        bars[label] = _split(row)
    columns: list[Column | str] = [
        *("collective", Column("name", "as the trace has it"), "ranks", "count", "bytes"),
        *("total_ms", "exposed_ms", "wait_ms", Column("came_last", "came last")),
    ]
    mean, html = report["mean"], stacked_bars(bars, "ms per rank, all recorded steps", PALETTE)
    if mean.get("comm_overlap_pct") is not None and mean.get("comm_pct") is not None:
        html += note(
            f"Communication runs {format_number(mean['comm_pct'], 1)} % of the step; compute hides "
            f"{format_number(mean['comm_overlap_pct'], 1)} % of it."
        )
    html += html_table([_shown(row) for row in rows[:MOST_COLLECTIVES]], columns)
    html += cut_note(rows, "collective_stats", MOST_COLLECTIVES)
    html += note(
        f"Source {report['source']}, means per rank. A collective ends on all ranks together: wait is the time above "
        "the shortest call of any rank, and the rank with the shortest call came last. '-': calls of ranks cannot be "
        "matched, or the trace does not tell."
    )
    single = [
        row
        | {
            "rank": str(row["rank"]),
            "collective": describe_collective(row.get("collective"), row.get("axis")),
        }
        for row in report["collectives"]
        if row["rank"] in set(chosen)
    ]
    ranks = ["rank", "collective", "count", "bytes", "total_ms", "exposed_ms", "wait_ms", "arrived_last"]
    table = html_table(single[:MOST_ROWS], ranks) + cut_note(single, "collective_stats")
    return Section(title, html + details("Rank by rank", table))


def _split(row: dict[str, Any]) -> dict[str, float | None]:
    """Of the time in a collective: hidden, transfer in the open, waiting in the open."""
    total, exposed, waiting = row["total_ms"], row["exposed_ms"], row["exposed_wait_ms"]
    if total is None or exposed is None:
        return {HIDDEN: None}
    return {
        HIDDEN: max(total - exposed, 0.0),
        "communication": exposed - (waiting or 0.0),
        "waiting for the last rank": waiting,
    }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Counts and bytes are the same on every rank but for odd groups: shown whole."""
    return row | {key: None if row[key] is None else round(row[key]) for key in ("count", "bytes")}
