"""Two charts as inline SVG: lines, strips over time.

Colours go by position, the first name is blue, unless `colours` gives a name its place in the palette: where
one name stands in several charts of a page it has one colour. Hover shows a value (`<title>`).
8 ranks x 600 bins are 0.1 MB; a page with an embedded plotting library is 5 MB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from stratlab.drawing.canvas import (
    COLOURS,
    DASHES,
    WIDTH,
    Scale,
    build_svg,
    colour_of,
    dot,
    label_width,
    legend,
    line,
    line_style,
    note,
    rect,
    row_label,
    text,
    x_axis,
    y_axis,
)
from stratlab.number import format_number

Points = Sequence[tuple[float, float | None]]

MOST_POINTS = 800  # of one line; more than pixels helps nobody
MOST_DOTS = 12  # up to here each point is a dot
MOST_TOOLTIPS = 60  # and up to here it has a tooltip of its own


def _drawable(points: Points, log_y: bool) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if y is not None and math.isfinite(y) and (y > 0 or not log_y)]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The least and the largest point of each slice: peaks survive."""
    if len(points) <= MOST_POINTS:
        return points
    kept = []
    for part in np.array_split(np.arange(len(points)), MOST_POINTS // 2):
        ys = [points[i][1] for i in part]
        kept += [points[i] for i in sorted({int(part[np.argmin(ys)]), int(part[np.argmax(ys)])})]
    return kept


def line_chart(
    series: Mapping[str, Points], x_label: str, y_label: str, log_y: bool = False, height: float = 260
) -> Markup:
    """Lines over one pair of axes.

    Args:
        series: name -> [(x, y)]; y None or not finite leaves a point out, and so does y <= 0 with `log_y`.
        x_label, y_label: with their unit.
    """
    shown = {name: _drawable(points, log_y) for name, points in series.items()}
    everything = [point for points in shown.values() for point in points]
    if not everything:
        return note(f"No values to draw for {y_label}.")
    xs, ys = zip(*everything, strict=True)
    low, high = min(ys), max(ys)
    if log_y:
        low, high = low / 1.1, high * 1.1
    else:
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        low, high = (low - margin if low < 0 or low > margin else 0.0), high + margin
    keys, top = legend(list(shown), 64, lines=True)
    top += 22
    across = Scale(min(xs), max(xs), 68, WIDTH - 20)
    down = Scale(low, high, top + height, top, log_y)
    parts = [keys, text(10, top - 10, y_label + (" (logarithmic)" if log_y else ""), css="n")]
    parts += [*x_axis(across, top, top + height, x_label), *y_axis(down, 64, WIDTH - 16)]
    for i, (name, points) in sorted(enumerate(shown.items()), key=lambda entry: entry[0] % DASHES):
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in _thinned(points))
        if path:
            parts.append(
                Markup('<path d="M{}" class="{}"><title>{}</title></path>').format(path, line_style(i), name)
            )
    for i, (name, points) in enumerate(shown.items()):
        seen = len(points) <= MOST_DOTS
        radius = 2 + 1.5 * min(len(shown) - 1 - i, 3) if seen else 4  # rings where points coincide
        for x, y in points if len(points) <= MOST_TOOLTIPS else points[-1:]:
            tooltip = f"{name}: {format_number(y)} at {format_number(x)}"
            parts.append(dot(across(x), down(y), radius, f"f{i % COLOURS}" if seen else "hidden", tooltip))
    left_out = sum(len(points) for points in series.values()) - len(everything)
    remark = note(f"Left out: {left_out} points without a drawable value.") if left_out else Markup("")
    return build_svg(top + height + 40, parts, f"{y_label} over {x_label}") + remark


def strips(
    tracks: Mapping[str, Mapping[str, np.ndarray]],
    x_label: str = "",
    x_range: tuple[float, float] | None = None,
    colours: Mapping[str, int] | None = None,
) -> Markup:
    """Time from left to right; per label one lane for each class, its height the covered fraction of the bin.

    Args:
        tracks: label -> {class: fractions in [0, 1], shape (bins,)}; 600 to 1500 bins suffice for a screen.
        x_label: name and unit of the axis below; x_range: values at its two ends.
        colours: class -> place in the palette.
    """
    names = list(dict.fromkeys(name for track in tracks.values() for name in track))
    if not names:
        return note("No activity to draw.")
    left, lane = label_width(tracks), 18.0
    keys, top = legend(names, left, colours=colours)
    fills = colour_of(names, colours or {})
    pitch = lane * len(names) + 10
    bottom, span = top + pitch * len(tracks), WIDTH - 20 - left
    parts = [keys]
    if x_range is not None:
        parts += x_axis(Scale(*x_range, left, WIDTH - 20), top, bottom, x_label)
    for i, (label, track) in enumerate(tracks.items()):
        parts.append(row_label(label, top + pitch * i + pitch / 2 + 4, left))
        for k, name in enumerate(names):
            if name not in track:
                continue
            fractions = np.clip(np.nan_to_num(np.asarray(track[name], dtype=float)), 0, 1)
            base, width = top + pitch * i + lane * (k + 1), span / max(len(fractions), 1)
            path = "".join(
                f"M{left + b * width:.2f} {base:.0f}v{-(lane - 3) * f:.1f}h{width:.2f}v{(lane - 3) * f:.1f}z"
                for b, f in enumerate(fractions)
                if f > 0.02
            )
            tooltip = (
                f"{label}, {name}: {100 * float(fractions.mean()) if len(fractions) else 0:.1f} % of the time"
            )
            lane_area = rect(left, base - lane + 3, span, lane - 3, "lane", tooltip)
            drawn = Markup('<path d="{}" class="f{}"><title>{}</title></path>').format(
                path, fills[k], tooltip
            )
            parts += [lane_area, drawn, line(left, base, WIDTH - 20, base, "g")]
    return build_svg(bottom + (40 if x_range is not None else 6), parts, f"Strips over {x_label or 'time'}")
