"""The tables of an analysis, column by column: the schema that `stratlab analyze` writes next to them."""

from __future__ import annotations

from pathlib import Path

from stratlab.analysis.tables import build_schema

ROWS = {
    "rank_metrics": "rank: means over its recorded steps",
    "step_metrics": "rank and step",
    "phase_metrics": "rank, step and phase. A phase lasts until its work is done, so phases do not overlap",
    "kernel_stats": "rank and GPU event name, over the whole recording; empty on a CPU",
    "copy_stats": "rank and kind of copy, over the whole recording; empty on a CPU",
    "collective_stats": "rank, collective and axis, over all recorded steps",
    "idle_stats": "rank, device and stream, over the whole recording, by HTA's definition; empty on a CPU",
    "memory_curve": "point in time, at most 600 per rank and device; empty if allocations were not recorded",
    "hta_status": "analysis of HTA",
    "quality": "problem of the traces",
}
"""Table -> what a row stands for."""


def write_columns(repository: Path) -> str:
    """Return Markdown with one section per table and one row per column; `repository` is not read."""
    parts = [
        "# Tables of an analysis\n",
        "Every column of `analysis/tables/*.csv`, generated from the schema that `stratlab analyze` writes as "
        "`tables/schema.json`. Percentages are shares of the step unless the row names another base. An empty cell "
        "means not known. Text that a spreadsheet could take for a formula starts with an apostrophe.\n",
    ]
    for table, columns in build_schema()["tables"].items():
        rows = [f"| `{name}` | {each['unit']} | {each['meaning']} |" for name, each in columns.items()]
        parts.append(
            "\n".join(
                [
                    f"## {table}\n",
                    f"One row per {ROWS[table.removesuffix('.csv')]}.\n",
                    "| column | unit | meaning |",
                    "|---|---|---|",
                    *rows,
                ]
            )
            + "\n"
        )
    return "\n".join(parts)
