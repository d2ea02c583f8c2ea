"""Things compared in two numbers at once, and the line of those that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from markupsafe import Markup

from stratlab.drawing.canvas import (
    LETTER,
    WIDTH,
    Scale,
    build_svg,
    dot,
    fit_screens,
    note,
    shorten,
    text,
    x_axis,
    y_axis,
)
from stratlab.number import fit_unit, format_number

ON_FRONT, BESIDE = 0, 7  # places in the palette: blue and grey
LINE_HEIGHT = 15.0


def scatter(
    points: Mapping[str, tuple[float | None, float | None]],
    x_label: str,
    y_label: str,
    front: Collection[str] = (),
    height: float = 300,
) -> Markup:
    """One named dot per thing.

    Args:
        points: name -> (x, y); a point with None or a number that is not finite is left out, and that is said.
        x_label, y_label: with their unit; small sizes in GiB get a smaller one.
        front: names joined by a dashed line in the order of x, and drawn in blue; the others are grey.
    """
    shown = {
        name: (float(x), float(y))
        for name, (x, y) in points.items()
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
    }
    if x_label.startswith("GiB"):
        factor, unit = fit_unit(x for x, _ in shown.values())
        shown = {name: (x * factor, y) for name, (x, y) in shown.items()}
        x_label = x_label.replace("GiB", unit, 1)
    left_out = [name for name in points if name not in shown]
    remark = note(f"Left out, a value is not known: {', '.join(left_out)}.") if left_out else Markup("")
    if not shown:
        return note(f"No values to draw for {y_label} against {x_label}.") + remark

    def draw(width: float) -> Markup:
        return _draw(shown, x_label, y_label, front, height, width)

    return fit_screens(draw) + remark


def _draw(
    shown: Mapping[str, tuple[float, float]],
    x_label: str,
    y_label: str,
    front: Collection[str],
    height: float,
    width: float,
) -> Markup:
    top = 30.0
    across = _scale([x for x, _ in shown.values()], 68, width - 20)
    down = _scale([y for _, y in shown.values()], top + height, top)
    parts = [text(10, 14, y_label, css="n")]
    ticks = 8 if width == WIDTH else 4
    parts += [*x_axis(across, top, top + height, x_label, ticks), *y_axis(down, 64, width - 16)]
    line = sorted(shown[name] for name in shown if name in front)
    if len(line) > 1:
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in line)
        parts.append(Markup('<path d="M{}" class="l s{} d1 w1"/>').format(path, ON_FRONT))
    taken: list[tuple[float, float, float]] = []
    for name, (x, y) in sorted(shown.items(), key=lambda entry: entry[1][1], reverse=True):
        at, level = across(x), down(y)
        tooltip = f"{name}: {format_number(y)} {y_label} at {format_number(x)} {x_label}"
        parts.append(dot(at, level, 5, f"f{ON_FRONT if name in front else BESIDE}", tooltip))
        parts.append(_label(shorten(name, 40 if width == WIDTH else 22), at, level, taken, width))
    return build_svg(top + height + 40, parts, f"{y_label} against {x_label}", width)


def _scale(values: list[float], start: float, end: float) -> Scale:
    """A tenth of room at both ends; from zero where zero is near."""
    low, high = min(values), max(values)
    margin = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    return Scale(0.0 if 0 <= low <= high / 2 else low - margin, high + margin, start, end)


def _label(name: str, x: float, y: float, taken: list[tuple[float, float, float]], most: float) -> Markup:
    """The name beside its dot: at the left where the right has no room, and lower where another one stands."""
    width = len(name) * LETTER
    at_left = x + 9 + width > most
    start = x - 9 - width if at_left else x + 9
    place = y + 4
    while any(abs(place - other) < LINE_HEIGHT and start < b and a < start + width for a, b, other in taken):
        place += LINE_HEIGHT
    taken.append((start, start + width, place))
    return text(x - 9 if at_left else x + 9, place, name, "end" if at_left else "start")
