"""Tables as HTML: numbers right aligned, units in the header, `-` where nothing is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from stratlab.number import fit_unit, format_number

UNITS = {"ms": "ms", "us": "us", "s": "s", "pct": "%", "gib": "GiB", "mib": "MiB", "bytes": "bytes"}


@dataclass(frozen=True)
class Column:
    """A column: the key in the rows, and how its header and numbers look.

    `header` and `unit` default to what the key says: `step_time_ms_p50` -> "step time p50" in "ms".
    `digits` are decimals; None = 4 significant digits.
    """

    key: str
    header: str = ""
    unit: str = ""
    digits: int | None = None
    wide: bool = False
    """Holds sentences: it keeps room for them beside many other columns."""
    right: bool = False
    """On the right like numbers, though some are written as text: `<= 9.80`."""

    def title(self) -> tuple[str, str]:
        """Header and unit."""
        if self.header:
            return self.header, self.unit
        words, found = self.key.removesuffix("_per_s").split("_"), ""
        if self.key.endswith("_per_s"):
            found = "per s"
        elif named := [word for word in words if word in UNITS]:
            found = UNITS[named[-1]]
            words = [word for word in words if word not in UNITS]
        if not words:  # the unit is all there is: `bytes`
            return found, ""
        return " ".join(words), self.unit or found


def badge(word: str, kind: str) -> Markup:
    """A word in a coloured frame. `kind`: good, warn, bad, or plain."""
    assert kind in ("good", "warn", "bad", "plain"), kind
    return Markup('<span class="badge {}">{}</span>').format(kind, word)


def html_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column | str]) -> Markup:
    """A table with one line per row.

    Args:
        rows: key -> value; numbers, texts, None, or `Markup` (a badge). A key that is absent counts as None.
        columns: in order; a plain name stands for `Column(name)`.
    """
    shown = [column if isinstance(column, Column) else Column(column) for column in columns]
    rows, shown = fit_sizes(rows, shown)
    numeric = {column.key: _is_numeric(rows, column) for column in shown}
    head = Markup("").join(_header(column, numeric[column.key]) for column in shown)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(_cell(row.get(column.key), column, numeric[column.key]) for column in shown)
        )
        for row in rows
    )
    return Markup(
        '<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, body)


def fit_sizes(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]
) -> tuple[list[dict[str, Any]], list[Column]]:
    """Columns in GiB whose sizes are all small, in a unit that suits them."""
    fitted, found = [dict(row) for row in rows], []
    for column in columns:
        factor, unit = fit_unit(row.get(column.key) for row in rows)
        title, own = column.title()
        if own != "GiB" or unit == "GiB":
            found.append(column)
            continue
        found.append(Column(column.key, title, unit))
        for row in fitted:
            if isinstance(row.get(column.key), (int, float)):
                row[column.key] *= factor
    return fitted, found


def _is_numeric(rows: Sequence[Mapping[str, Any]], column: Column) -> bool:
    values = [row[column.key] for row in rows if row.get(column.key) is not None]
    if column.right:
        return True
    if not values:  # a number that nobody has keeps its side
        return bool(column.title()[1])
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _header(column: Column, numeric: bool) -> Markup:
    name, unit = column.title()
    units = Markup(' <span class="unit">{}</span>').format(unit) if unit else Markup("")
    return Markup('<th scope="col"{}>{}{}</th>').format(_css(numeric), name, units)


def _cell(value: Any, column: Column, numeric: bool) -> Markup:
    content = value if isinstance(value, Markup) else format_number(value, column.digits)
    return Markup("<td{}>{}</td>").format(Markup(' class="wide"') if column.wide else _css(numeric), content)


def _css(numeric: bool) -> Markup:
    return Markup(' class="num"') if numeric else Markup("")
