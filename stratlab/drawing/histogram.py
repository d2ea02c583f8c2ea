"""How often which size occurs: stacked columns over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from stratlab.drawing.canvas import (
    WIDTH,
    Scale,
    build_svg,
    colour_of,
    legend,
    note,
    rect,
    text,
    x_axis,
    y_axis,
)
from stratlab.number import format_number


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str = "count",
    colours: Mapping[str, int] | None = None,
    height: float = 220,
) -> Markup:
    """Columns side by side, the classes of one bin on top of each other; empty bins at both ends are cut off.

    Args:
        edges: of the bins, rising; all above 0 but perhaps the first, all finite but perhaps the last.
        counts: class -> count per bin, one less than there are edges.
        colours: class -> place in the palette.

    Raises:
        ValueError: a class has another number of bins.
    """
    bins = len(edges) - 1
    if wrong := [name for name, values in counts.items() if len(values) != bins]:
        raise ValueError(f"{wrong[0]}: {len(counts[wrong[0]])} counts for {bins} bins")
    totals = [sum(values[i] for values in counts.values()) for i in range(bins)]
    used = [i for i, total in enumerate(totals) if total > 0]
    if not used:
        return note(f"No values to draw for {x_label}.")
    bounds = _drawable(edges)
    first, last = used[0], used[-1]
    names = [name for name, values in counts.items() if any(values)]
    fills = colour_of(list(counts), colours or {})
    own = {name: fills[list(counts).index(name)] for name in names}
    keys, top = legend(names, 64, colours=own)
    top += 22
    across = Scale(bounds[first], bounds[last + 1], 68, WIDTH - 20, log=True)
    down = Scale(0.0, max(totals) * 1.05, top + height, top)
    parts = [keys, text(10, top - 10, y_label, css="n")]
    parts += [*x_axis(across, top, top + height, x_label), *y_axis(down, 64, WIDTH - 16)]
    for i in range(first, last + 1):
        left, right, base = across(bounds[i]), across(bounds[i + 1]), 0.0
        for name in names:
            count = counts[name][i]
            if count > 0:
                span = f"{format_number(float(edges[i]))} to {format_number(float(edges[i + 1]))}"
                tooltip = f"{name}, {span}: {format_number(count)}"
                y, size = down(base + count), down(base) - down(base + count)
                parts.append(rect(left + 0.5, y, right - left - 1, size, f"f{own[name]}", tooltip))
                base += count
    return build_svg(top + height + 40, parts, f"Distribution of {x_label}")


def _drawable(edges: Sequence[float]) -> list[float]:
    """Zero and infinity have no place on the axis: the outer bins get the width of their neighbours."""
    bounds = [float(edge) for edge in edges]
    if len(bounds) > 2 and bounds[0] <= 0:
        bounds[0] = bounds[1] ** 2 / bounds[2]
    if len(bounds) > 2 and math.isinf(bounds[-1]):
        bounds[-1] = bounds[-2] ** 2 / bounds[-3]
    return bounds
