"""Bars, dots, matrices and histograms as inline SVG.

stacked_bars   from zero, their parts side by side: a step, a rank or a device.
waterfall      from one total to another, a part at a time.
scatter        things compared in two numbers at once, and the line of those that no other beats in both.
heat_map       a matrix as shaded cells: a confusion matrix, bytes from rank to rank.
histogram      frequency of sizes: stacked columns over a logarithmic axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from stratlab.drawing.canvas import (
    LETTER,
    NARROW,
    WIDTH,
    Scale,
    build_svg,
    colour_of,
    dot,
    fit_screens,
    label_above,
    label_width,
    legend,
    line,
    note,
    rect,
    row_label,
    shorten,
    text,
    x_axis,
    y_axis,
)
from stratlab.wording import fit_digits, fit_unit, format_number

PITCH = 26
MARGIN = 4.0
NUMBERS = 80.0  # px at the right, for the total of a row


def stacked_bars(
    rows: Mapping[str, Mapping[str, float | None]],
    unit: str,
    colours: Mapping[str, int] | None = None,
    digits: int | None = None,
    width: float = WIDTH,
    totals: Mapping[str, tuple[float, str]] | None = None,
) -> Markup:
    """Draw one horizontal bar per row, from zero, its parts side by side and its total at the end.

    Args:
        rows: label -> {part: value in `unit`}; a value None is not drawn. Small sizes in GiB get a smaller unit.
        colours: part -> place in the palette; after its eight colours come the same ones, lighter.
        digits: decimals of the totals; None = 4 significant digits.
        totals: label -> (value of the row's mark, text at its end instead of the sum).
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
    sums = {label: sum(v for v in row.values() if v is not None) for label, row in rows.items()}
    if not names or not any(sums.values()):
        return note(f"No values to draw in {unit}.")
    fills = dict(zip(names, colour_of(names, colours or {}), strict=True))
    marks = totals or {}

    def draw(width: float) -> Markup:
        """Draw at this width; with little room the labels are above their bars."""
        above = 15.0 if width <= NARROW else 0.0
        left, pitch = (MARGIN if above else label_width(rows, most=width / 3.2)), PITCH + above
        keys, top = legend(list(fills), left, colours=fills, width=width)
        top += 4
        room = max([NUMBERS, *(len(said) * LETTER + 10 for _, said in marks.values())])
        longest = max([*sums.values(), *(at for at, _ in marks.values())])
        across = Scale(0.0, longest, left, width - room)
        bottom = top + pitch * len(rows)
        parts = [keys, *x_axis(across, top, bottom, unit, 8 if width == WIDTH else 4)]
        for i, (label, row) in enumerate(rows.items()):
            y, x, total = top + pitch * i + above + 5, left, sums[label]
            beside = row_label(label, y + 14, left)
            parts.append(label_above(label, left, y - 4, width - left) if above else beside)
            for part, value in row.items():
                if value is None or value <= 0:
                    continue
                length = across(value) - left
                tooltip = f"{label}, {part}: {format_number(value)} {unit} ({100 * value / total:.1f} %)"
                parts.append(rect(x, y, length, PITCH - 8, f"f{fills[part]}", tooltip))
                x += length
            known = any(value is not None for value in row.values())
            said = format_number(total, digits) if known else "not known"
            if label in marks:
                at, said = across(marks[label][0]), marks[label][1]
                parts.append(line(at, y - 3, at, y + PITCH - 7, "mark"))
                x = max(x, at)
            parts.append(text(x + 6, y + 14, said, css="n"))
        return build_svg(bottom + 40, parts, f"Stacked bars in {unit}", width)

    return fit_screens(draw, width)


STEP = 20
ENDS = "f15"


def waterfall(
    start: tuple[str, float],
    parts: Mapping[str, float],
    end: tuple[str, float],
    unit: str,
    colours: Mapping[str, int],
    width: float = WIDTH,
) -> Markup:
    """Draw the way between two totals: each part begins at the end of the one before, to the right if it adds.

    Args:
        start, end: name and total; the parts sum to their difference.
        colours: part -> place in the palette.
    """
    labels = [start[0], *parts, end[0]]
    levels = [start[1]]
    for ms in parts.values():
        levels.append(levels[-1] + ms)
    low, high = min(levels), max(levels)
    begin = (
        0.0 if high - low > high / 4 else max(low - (high - low) / 2, 0.0)
    )  # near totals: only the differences

    def draw(width: float) -> Markup:
        left = label_width(labels, most=width / 2.6)
        across = Scale(begin, high if high > begin else begin + 1, left, width - NUMBERS)
        bottom = 4 + STEP * len(labels)
        cut = f", axis from {format_number(begin)}" if begin else ""
        drawn = x_axis(across, 4, bottom, unit + cut, 5 if width > NARROW else 3)
        spans = [(begin, start[1]), *itertools.pairwise(levels), (begin, end[1])]
        for i, (label, (a, b)) in enumerate(zip(labels, spans, strict=True)):
            y, at_end = 4 + STEP * i, i in (0, len(labels) - 1)
            said = format_number(b) if at_end else f"{b - a:+,.{fit_digits([high - low])}f}"
            css = ENDS if at_end else f"f{colours[label]}"
            x1, x2 = sorted((across(a), across(b)))
            drawn += [
                row_label(label, y + 14, left),
                rect(x1, y + 4, max(x2 - x1, 1.0), STEP - 8, css, f"{label}: {said} {unit}"),
            ]
            drawn.append(text(x2 + 6, y + 14, said, css="n"))
        return build_svg(bottom + 40, drawn, f"From {start[0]} to {end[0]} in {unit}", width)

    return fit_screens(draw, width)


ON_FRONT, BESIDE = 0, 7  # places in the palette: blue and grey
LINE_HEIGHT = 15.0
ARROWS = {"higher": "↖ better", "lower": "↙ better"}


def scatter(
    points: Mapping[str, tuple[float | None, float | None]],
    x_label: str,
    y_label: str,
    front: Collection[str] = (),
    height: float = 300,
    width: float = WIDTH,
    limit: float | None = None,
    better: str = "",
) -> Markup:
    """Draw one named dot per thing.

    Args:
        points: name -> (x, y); a point with None or a number that is not finite is left out, and a note names it.
        x_label, y_label: with their unit; small sizes in GiB get a smaller one.
        front: names joined by a dashed line in the order of x, and drawn in blue; the others are grey.
        limit: of x; a line if it is near the points, else a word.
        better: which y is better, at a small x: `higher` or `lower`; an arrow points there.
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
        limit = limit and limit * factor
    left_out = [name for name in points if name not in shown]
    remark = note(f"Left out, a value is not known: {', '.join(left_out)}.") if left_out else Markup("")
    if not shown:
        return note(f"No values to draw for {y_label} against {x_label}.") + remark
    xs, ys = zip(*shown.values(), strict=True)
    is_near = limit is not None and limit <= 2 * max(xs)

    def draw(width: float) -> Markup:
        top = 30.0
        across = _scale([*xs, *([limit] if limit and is_near else [])], 68, width - 20)
        down = _scale(list(ys), top + height, top)
        parts = [text(10, 14, y_label, css="n")]
        ticks = 8 if width == WIDTH else 4
        parts += [*x_axis(across, top, top + height, x_label, ticks), *y_axis(down, 64, width - 16)]
        if limit and is_near:
            parts.append(line(across(limit), top, across(limit), top + height, "limit"))
        if limit:
            x, y = (across(limit) - 5, top + height - 8) if is_near else (width - 20, 14)
            parts.append(
                text(x, y, f"limit of a device: {limit:.4g} {x_label.partition(' ')[0]}", "end", "n")
            )
        if better:
            parts.append(
                text(74, top + (16 if better == "higher" else height - 8), ARROWS[better], css="better")
            )
        joined = sorted(shown[name] for name in shown if name in front)
        if len(joined) > 1:
            path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in joined)
            parts.append(Markup('<path d="M{}" class="l s{} d1 w1"/>').format(path, ON_FRONT))
        taken = [(across(x) - 6, across(x) + 6, down(y) + 4) for x, y in shown.values()]
        for name, (x, y) in sorted(shown.items(), key=lambda entry: entry[1][1], reverse=True):
            at, level = across(x), down(y)
            tooltip = f"{name}: {format_number(y)} {y_label} at {format_number(x)} {x_label}"
            parts.append(dot(at, level, 5, f"f{ON_FRONT if name in front else BESIDE}", tooltip))
            parts.append(_label(shorten(name, 40 if width == WIDTH else 22), at, level, taken, width))
        return build_svg(top + height + 40, parts, f"{y_label} against {x_label}", width)

    return fit_screens(draw, width) + remark


def _scale(values: list[float], start: float, end: float) -> Scale:
    """Return a scale with a tenth of room at both ends; from zero if zero is near. Near values stay near."""
    low, high = min(values), max(values)
    margin = max((high - low) * 0.1, abs(high) * 0.05) or 1.0
    return Scale(0.0 if 0 <= low <= high / 2 else low - margin, high + margin, start, end)


def _label(name: str, x: float, y: float, taken: list[tuple[float, float, float]], most: float) -> Markup:
    """Draw the name of a dot: at the left if the right has no room, and lower if another name or dot is in the way."""
    width = len(name) * LETTER
    at_left = x + 9 + width > most
    start = x - 9 - width if at_left else x + 9
    place = y + 4
    while any(abs(place - other) < LINE_HEIGHT and start < b and a < start + width for a, b, other in taken):
        place += LINE_HEIGHT
    taken.append((start, start + width, place))
    return text(x - 9 if at_left else x + 9, place, name, "end" if at_left else "start")


MOST_CLASSES = 128  # 10,000 cells that are not 0 are about 1 MB
CELL_WITH_NUMBER = 26.0  # px of an edge: 30 columns have it
LETTER_OF_CELL = 7.5  # px of one letter of a column label


def heat_map(
    matrix: Sequence[Sequence[float]] | np.ndarray,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    row_title: str = "",
    column_title: str = "",
    by_row: bool = False,
) -> Markup:
    """Draw cells as dark as their value; up to 30 columns show the number, all show it on hover.

    With more columns the cells of 0 are one surface: of 100 classes most pairs are never confused.

    Args:
        matrix: shape (rows, columns), not negative.
        by_row: shade by the share of the row (a confusion matrix) instead of the share of the largest cell.
    """
    values = np.nan_to_num(np.asarray(matrix, dtype=float)).reshape(len(row_labels), len(column_labels))
    if not values.size or max(values.shape) > MOST_CLASSES:
        return note(
            f"A matrix of {values.shape[0]} x {values.shape[1]} is not drawn (1 to {MOST_CLASSES} are)."
        )
    whole = values.sum(axis=1, keepdims=True) if by_row else np.full((len(values), 1), values.max())
    shares = np.divide(values, whole, out=np.zeros_like(values), where=whole > 0)
    left, top = label_width(row_labels), 44.0
    cell = min(42.0, (WIDTH - left - 10) / len(column_labels))
    fitting = max(1, int(cell / LETTER_OF_CELL))
    parts = [text(left, 14, column_title, css="n"), text(left - 8, top - 10, row_title, "end", "n")]
    for j, name in enumerate(column_labels):
        if cell >= 14:
            parts.append(text(left + cell * (j + 0.5), top - 10, shorten(name, fitting), "middle", "n"))
    shows_numbers = cell >= CELL_WITH_NUMBER
    if not shows_numbers:
        parts.append(rect(left, top, cell * len(column_labels) - 1, cell * len(row_labels) - 1, "h0"))
    for i, name in enumerate(row_labels):
        y = top + cell * i
        if cell >= 10:
            parts.append(row_label(name, y + cell / 2 + 4, left))
        for j, value in enumerate(values[i]):
            if not value and not shows_numbers:
                continue
            tooltip = (
                f"{name} / {column_labels[j]}: {format_number(float(value))} ({100 * shares[i, j]:.1f} %)"
            )
            css = f"h{math.ceil(10 * shares[i, j])}"
            parts.append(rect(left + cell * j, y, cell - 1, cell - 1, css, tooltip))
            if shows_numbers and value:
                ink = "n strong" if shares[i, j] <= 0.5 else "n onfill"
                parts.append(text(left + cell * (j + 0.5), y + cell / 2 + 4, f"{value:.4g}", "middle", ink))
    return build_svg(top + cell * len(row_labels) + 6, parts, f"{row_title} against {column_title}")


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str = "count",
    colours: Mapping[str, int] | None = None,
    height: float = 220,
) -> Markup:
    """Return columns side by side, the classes of one bin on top of each other; empty bins at both ends are cut off.

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
    """Replace zero and infinity, which have no place on the axis: the outer bins get the width of their neighbours."""
    bounds = [float(edge) for edge in edges]
    if len(bounds) > 2 and bounds[0] <= 0:
        bounds[0] = bounds[1] ** 2 / bounds[2]
    if len(bounds) > 2 and math.isinf(bounds[-1]):
        bounds[-1] = bounds[-2] ** 2 / bounds[-3]
    return bounds
