"""The tables of an analysis, column by column: the schema that `stratlab analyze` writes next to them."""

from __future__ import annotations

from pathlib import Path

from stratlab.analysis.tables import build_schema


def write_columns(repository: Path) -> str:
    """Return Markdown with one section per table and one row per column; `repository` is not read."""
    parts = [
        "# Tables of an analysis\n",
        "Every column of `analysis/tables/*.csv`, generated from the schema that `stratlab analyze` writes as "
        "`tables/schema.json`. Percentages are shares of the step unless the row names another base. An empty cell "
        "means not known. [Analysis](../analysis.md#open-the-tables) lists the rows of each table.\n",
    ]
    for table, columns in build_schema()["tables"].items():
        rows = [f"| `{name}` | {each['unit']} | {each['meaning']} |" for name, each in columns.items()]
        parts.append(
            "\n".join([f"## {table}\n", "| column | unit | meaning |", "|---|---|---|", *rows]) + "\n"
        )
    return "\n".join(parts)
