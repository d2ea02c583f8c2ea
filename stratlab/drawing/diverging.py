"""Bars that go both ways from zero: what a step takes longer to the right, what it takes shorter to the left."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from stratlab.drawing import note
from stratlab.drawing.canvas import (
    COLOURS,
    WIDTH,
    Scale,
    build_svg,
    fit_screens,
    label_above,
    label_width,
    legend,
    line,
    rect,
    row_label,
    text,
    x_axis,
)
from stratlab.number import format_number

PITCH = 34
MARGIN = 4.0
NUMBERS = 74.0  # px at the right, for the sum of a row


def diverging_bars(rows: Mapping[str, Mapping[str, float]], unit: str, colours: Mapping[str, int]) -> Markup:
    """One row per label; its positive parts lie side by side to the right of zero, its negative ones to the left. A
    mark above the bar shows the sum, and a number at the end.

    Args:
        rows: label -> {part: value in `unit`}.
        colours: part -> index of its colour, the same in every chart of a page; also the order of the parts.
    """
    names = [name for name in colours if any(row.get(name) for row in rows.values())]
    ahead = [sum(v for v in row.values() if v > 0) for row in rows.values()]
    behind = [sum(v for v in row.values() if v < 0) for row in rows.values()]
    low, high = min(behind, default=0.0), max(ahead, default=0.0)
    if not names or high == low:
        return note(f"No differences to draw in {unit}.")

    def draw(width: float) -> Markup:
        return _draw(rows, unit, colours, Scale(low, high, 0, 0), names, width)

    return fit_screens(draw)


def _draw(
    rows: Mapping[str, Mapping[str, float]],
    unit: str,
    colours: Mapping[str, int],
    values: Scale,
    names: list[str],
    width: float,
) -> Markup:
    """Where there is little room the labels stand above their bars."""
    above = 0.0 if width == WIDTH else 16.0
    left, pitch = (MARGIN if above else label_width(rows)), PITCH + above
    keys, top = legend(names, left, colours=colours, width=width)
    top += 4
    across = Scale(values.low, values.high, left, width - NUMBERS)
    bottom = top + pitch * len(rows)
    ticks = 4 if above else 8
    parts = [keys, *x_axis(across, top, bottom, f"difference, {unit}; ▾ = their sum", ticks)]
    for i, (label, row) in enumerate(rows.items()):
        y, total = top + pitch * i + above + 6, sum(row.values())
        named = label_above(label, left, y - 5, width - left) if above else row_label(label, y + 15, left)
        parts.append(named)
        ends = {1: 0.0, -1: 0.0}
        for name in names:
            value = row.get(name, 0.0)
            if value == 0:
                continue
            side = 1 if value > 0 else -1
            start, ends[side] = ends[side], ends[side] + value
            x = min(across(start), across(ends[side]))
            tooltip = f"{label}, {name}: {value:+.4g} {unit}"
            length = abs(across(ends[side]) - across(start))
            parts.append(rect(x, y, length, PITCH - 12, f"f{colours[name] % COLOURS}", tooltip))
        parts.append(text(across(total), y + 1, "▾", "middle"))  # in ink: seen over every colour
        parts.append(text(width - NUMBERS + 8, y + 15, _signed(total), css="n"))
    zero = across(0.0)
    parts.append(line(zero, top, zero, bottom, "s7 w1"))
    return build_svg(bottom + 40, parts, f"Differences in {unit}, by part", width)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{format_number(abs(value))}"
