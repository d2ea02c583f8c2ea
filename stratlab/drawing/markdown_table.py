"""Tables and text as Markdown; what comes from outside is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.drawing.table import Column, fit_sizes
from stratlab.number import format_number

SPECIAL = "\\`*_{}[]<>#+!|~"  # what Markdown or the HTML in it would read as markup
LONGEST = 240

Columns = Sequence[Column | str]


def escape_markdown(text: Any) -> str:
    """On one line, with every character that could be markup behind a backslash."""
    line = " ".join(str(text).split())
    return "".join(f"\\{letter}" if letter in SPECIAL else letter for letter in line)


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """A table with numbers at the right; `-` where a value is not known, sizes in a unit that suits
    them, long texts cut."""
    rows, shown = fit_sizes(rows, [c if isinstance(c, Column) else Column(c) for c in columns])
    titles = [
        " ".join(filter(None, (name, f"({unit})" if unit else "")))
        for name, unit in (c.title() for c in shown)
    ]
    numeric = [
        all(isinstance(row.get(c.key), int | float) for row in rows if row.get(c.key) is not None)
        for c in shown
    ]
    lines = [titles, ["---:" if right else "---" for right in numeric]]
    lines += [[_cell(row.get(column.key), column) for column in shown] for row in rows]
    head, rule, *body = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in ([escape_markdown(t) for t in head], rule, *body))


def _cell(value: Any, column: Column) -> str:
    text = format_number(value, column.digits)
    return escape_markdown(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
