"""Bars from zero, their parts side by side: what a step, a rank or a device is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from stratlab.drawing.canvas import (
    WIDTH,
    Scale,
    build_svg,
    colour_of,
    fit_screens,
    label_above,
    label_width,
    legend,
    note,
    rect,
    row_label,
    text,
    x_axis,
)
from stratlab.number import fit_unit, format_number

PITCH = 30
MARGIN = 4.0
NUMBERS = 80.0  # px at the right, for the total of a row


def stacked_bars(
    rows: Mapping[str, Mapping[str, float | None]],
    unit: str,
    colours: Mapping[str, int] | None = None,
    digits: int | None = None,
) -> Markup:
    """One horizontal bar per row, from zero, its parts side by side and its total at the end.

    Args:
        rows: label -> {part: value in `unit`}; a value None is not drawn. Small sizes in GiB get a smaller unit.
        colours: part -> place in the palette; behind its eight colours come the same ones, lighter.
        digits: decimals of the totals; None = 4 significant digits.
    """
    names = list(dict.fromkeys(part for row in rows.values() for part, value in row.items() if value))
    rows = {
        label: {k: v if v is not None and math.isfinite(v) else None for k, v in row.items()}
        for label, row in rows.items()
    }
    if unit.startswith("GiB"):
        factor, fitting = fit_unit(sum(filter(None, row.values())) for row in rows.values())
        unit = unit.replace("GiB", fitting, 1)
        rows = {label: {k: v and v * factor for k, v in row.items()} for label, row in rows.items()}
    totals = {label: sum(v for v in row.values() if v is not None) for label, row in rows.items()}
    if not names or not any(totals.values()):
        return note(f"No values to draw in {unit}.")
    fills = dict(zip(names, colour_of(names, colours or {}), strict=True))

    def draw(width: float) -> Markup:
        return _draw(rows, totals, unit, fills, digits, width)

    return fit_screens(draw)


def _draw(
    rows: Mapping[str, Mapping[str, float | None]],
    totals: Mapping[str, float],
    unit: str,
    fills: Mapping[str, int],
    digits: int | None,
    width: float,
) -> Markup:
    """Where there is little room the labels stand above their bars."""
    above = 0.0 if width == WIDTH else 15.0
    left, pitch = (MARGIN if above else label_width(rows)), PITCH + above
    keys, top = legend(list(fills), left, colours=fills, width=width)
    top += 4
    across = Scale(0.0, max(totals.values()), left, width - NUMBERS)
    bottom = top + pitch * len(rows)
    parts = [keys, *x_axis(across, top, bottom, unit, 4 if above else 8)]
    for i, (label, row) in enumerate(rows.items()):
        y, x = top + pitch * i + above + 5, left
        named = label_above(label, left, y - 4, width - left) if above else row_label(label, y + 15, left)
        parts.append(named)
        for part, value in row.items():
            if value is None or value <= 0:
                continue
            length = across(value) - left
            share = f"{100 * value / totals[label]:.1f} %"
            tooltip = f"{label}, {part}: {format_number(value)} {unit} ({share})"
            parts.append(rect(x, y, length, PITCH - 10, f"f{fills[part]}", tooltip))
            x += length
        known = any(value is not None for value in row.values())
        total = format_number(totals[label], digits) if known else "not known"
        parts.append(text(x + 6, y + 15, total, css="n"))
    return build_svg(bottom + 40, parts, f"Stacked bars in {unit}", width)
