"""The parts that every chart shares (the svg element, text, legend, axes and their ticks), lines, and a timeline.

Colours are classes (`f0` fill, `s0` stroke); page.css holds their values, for light and for dark. They follow the
position, and the first name is blue. `colours` gives a name its place in the palette, so that a name in several
charts of a page has one colour. Hover shows a value (`<title>`).

8 ranks x 600 bins are 0.1 MB; a page with an embedded plotting library is 5 MB.

A timeline is one stretch of time, row by row, with the activities of each. It can be zoomed; without the page's script
it is whole. Every row has up to three lanes: named spans, time by colour, and boxes, which may overlap. Positions in a
lane are percentages of the width, so that zooming is a wider box in one that scrolls (zooming.js).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from markupsafe import Markup

from stratlab.wording import format_number

WIDTH = 920.0
HALF = 560.0  # of a chart in one of two columns
NARROW = 360.0  # of the second drawing of a chart that a telephone shows whole
COLOURS = 8  # Okabe and Ito's palette, in page.css
FILLS = 2 * COLOURS  # the second eight are the first, lighter
DASHES = 4
LETTER = 6.6  # px of one letter at 12 px, on average
MOST_POINTS = 800  # of one line; more than pixels does not help
MOST_DOTS = 12  # up to here each point is a dot
MOST_TOOLTIPS = 60  # and up to here it has a tooltip of its own
Points = Sequence[tuple[float, float | None]]


def build_svg(height: float, parts: Iterable[Markup], label: str, width: float = WIDTH) -> Markup:
    """Return one svg element of `width` x `height` in a box that scrolls if the screen is too narrow for its letters.

    Args:
        label: text for a screen reader.
    """
    body = Markup("").join(parts)
    return Markup(
        '<div class="chart"><svg viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="xMinYMin meet">{}'
        "</svg></div>"
    ).format(f"{width:g}", f"{height:g}", label, body)


def fit_screens(draw: Callable[[float], Markup], width: float = WIDTH) -> Markup:
    """Return a chart twice: for wide screens and paper, and for narrow screens without scrolling.

    Args:
        draw: the chart of a width.
        width: on a wide screen.
    """
    twice = '<div class="twice"><div class="wide">{}</div><div class="narrow">{}</div></div>'
    return Markup(twice).format(draw(width), draw(NARROW))


def note(sentence: str) -> Markup:
    """Return a remark below a chart, or in its place."""
    return Markup('<p class="note">{}</p>').format(sentence)


def text(x: float, y: float, content: str, anchor: str = "start", css: str = "t") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>').format(
        f"{x:.1f}", f"{y:.1f}", anchor, css, content
    )


def rect(x: float, y: float, width: float, height: float, css: str, tooltip: str = "") -> Markup:
    title = Markup("<title>{}</title>").format(tooltip) if tooltip else Markup("")
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>').format(
        f"{x:.2f}", f"{y:.2f}", f"{max(width, 0.0):.2f}", f"{height:.2f}", css, title
    )


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        f"{x1:.1f}", f"{y1:.1f}", f"{x2:.1f}", f"{y2:.1f}", css
    )


def dot(x: float, y: float, radius: float, css: str, tooltip: str) -> Markup:
    return Markup('<circle cx="{}" cy="{}" r="{}" class="{}"><title>{}</title></circle>').format(
        f"{x:.1f}", f"{y:.1f}", f"{radius:g}", css, tooltip
    )


def shorten(label: str, letters: int) -> str:
    return label if len(label) <= letters else label[: letters - 1] + "…"


def label_width(labels: Iterable[str], least: float = 50.0, most: float = 240.0) -> float:
    """Return the pixels that the longest of the labels needs."""
    longest = max((len(label) for label in labels), default=0)
    return min(max(longest * LETTER + 20, least), most)


def row_label(label: str, y: float, width: float) -> Markup:
    """Return the name of a row, right aligned in the left margin; the whole name is the tooltip."""
    shown = shorten(label, int((width - 10) / LETTER))
    return Markup("<g><title>{}</title>{}</g>").format(label, text(width - 8, y, shown, "end"))


def label_above(label: str, x: float, y: float, width: float) -> Markup:
    """Draw the name of a row above it if there is no room at its left; the whole name is the tooltip."""
    return Markup("<g><title>{}</title>{}</g>").format(label, text(x, y, shorten(label, int(width / LETTER))))


def colour_of(names: Sequence[str], colours: Mapping[str, int]) -> list[int]:
    """Return the index into the fills of each name: the given one, else its position."""
    return [colours.get(name, i) % FILLS for i, name in enumerate(names)]


def legend(
    names: Sequence[str],
    left: float,
    lines: bool = False,
    colours: Mapping[str, int] | None = None,
    width: float = WIDTH,
) -> tuple[Markup, float]:
    """Draw coloured keys (pieces of line, or fields) in reading order, wrapped. Return them and their height."""
    fills = colour_of(names, colours or {})
    key = 30 if lines else 14
    parts, x, y = [], left, 12.0
    most = min(60, int((width - left - key - 6) / LETTER))
    for i, name in enumerate(names):
        shown = shorten(name, most)
        needed = key + 6 + len(shown) * LETTER + 18
        if x + needed > width and x > left:
            x, y = left, y + 18
        field = rect(x, y - 9, key, 10, f"f{fills[i]}")
        parts.append(line(x, y - 4, x + key, y - 4, line_style(i)) if lines else field)
        parts.append(text(x + key + 5, y, shown))
        x += needed
    return Markup("").join(parts), y + 10


def line_style(i: int) -> str:
    """Return the classes of line `i`: its colour, and a dash that leaves gaps, so that lines that coincide all show."""
    return f"l s{i % COLOURS} d{i % DASHES} w{min(i // DASHES, 2)}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers (1, 2, 5 times a power of ten) within [low, high]."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten within [low, high]; 2 and 5 of each as well when there are few."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    tens = [10.0**p for p in powers]
    inside = [t for t in tens if low <= t <= high]
    if len(inside) >= 3:
        stride = math.ceil(len(inside) / 7)
        return inside[::stride]
    return [t * f for t in tens for f in (1, 2, 5) if low <= t * f <= high]


def format_tick(value: float) -> str:
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Scale:
    """Map a value to a pixel, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, v = self.low, self.high, value
        if self.log:
            low, high, v = math.log10(low), math.log10(high), math.log10(v)
        share = (v - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        return (self.log and log_ticks(self.low, self.high)) or ticks(self.low, self.high, count)


def x_axis(
    scale: Scale, top: float, bottom: float, label: str, count: int = 8, values: Sequence[float] = ()
) -> list[Markup]:
    """Draw vertical grid lines with their values below, and the name of the axis. `values`: instead of round ones."""
    parts = []
    for value in values or scale.ticks(count):
        x = scale(value)
        parts += [line(x, top, x, bottom, "g"), text(x, bottom + 15, format_tick(value), "middle", "n")]
    parts.append(text((scale.start + scale.end) / 2, bottom + 32, label, "middle", "n"))
    return parts


def y_axis(scale: Scale, left: float, right: float) -> list[Markup]:
    """Draw horizontal grid lines with their values at the left."""
    parts = []
    for value in scale.ticks():
        y = scale(value)
        parts += [line(left, y, right, y, "g"), text(left - 6, y + 4, format_tick(value), "end", "n")]
    return parts


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the least and the largest point of each slice: peaks survive."""
    if len(points) <= MOST_POINTS:
        return points
    kept = []
    for part in np.array_split(np.arange(len(points)), MOST_POINTS // 2):
        ys = [points[i][1] for i in part]
        kept += [points[i] for i in sorted({int(part[np.argmin(ys)]), int(part[np.argmax(ys)])})]
    return kept


def line_chart(
    series: Mapping[str, Points],
    x_label: str,
    y_label: str,
    log_y: bool = False,
    height: float = 260,
    width: float = WIDTH,
    x_values: Sequence[float] = (),
) -> Markup:
    """Draw lines over one pair of axes.

    Args:
        series: name -> [(x, y)]; y None or not finite leaves a point out, and so does y <= 0 with `log_y`.
        x_label, y_label: with their unit.
        width: below WIDTH there is a second drawing for narrow screens.
        x_values: numbers of the axis, as of ranks, which are whole; else round ones.
    """
    shown = {
        name: [(x, y) for x, y in points if y is not None and math.isfinite(y) and (y > 0 or not log_y)]
        for name, points in series.items()
    }
    everything = [point for points in shown.values() for point in points]
    if not everything:
        return note(f"No values to draw for {y_label}.")
    xs, ys = zip(*everything, strict=True)
    low, high = min(ys), max(ys)
    if log_y:
        low, high = low / 1.1, high * 1.1
    else:
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        low = 0.0 if 0 <= low <= high / 2 else low
        low, high = (low - margin if low < 0 or low > margin else 0.0), high + margin

    def draw(width: float) -> Markup:
        keys, top = legend(list(shown), 64, lines=True, width=width)
        top += 22
        across = Scale(min(xs), max(xs), 68, width - 20)
        down = Scale(low, high, top + height, top, log_y)
        parts = [keys, text(10, top - 10, y_label + (" (logarithmic)" if log_y else ""), css="n")]
        parts += x_axis(across, top, top + height, x_label, 8 if width > NARROW else 4, x_values)
        parts += y_axis(down, 64, width - 16)
        for i, (name, points) in sorted(enumerate(shown.items()), key=lambda entry: entry[0] % DASHES):
            path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in _thinned(points))
            if path:
                drawn = Markup('<path d="M{}" class="{}"><title>{}</title></path>')
                parts.append(drawn.format(path, line_style(i), name))
        for i, (name, points) in enumerate(shown.items()):
            seen = len(points) <= MOST_DOTS
            radius = 2 + 1.5 * min(len(shown) - 1 - i, 3) if seen else 4  # rings where points coincide
            for x, y in points if len(points) <= MOST_TOOLTIPS else points[-1:]:
                tooltip = f"{name}: {format_number(y)} at {format_number(x)}"
                parts.append(
                    dot(across(x), down(y), radius, f"f{i % COLOURS}" if seen else "hidden", tooltip)
                )
        return build_svg(top + height + 40, parts, f"{y_label} over {x_label}", width)

    left_out = sum(len(points) for points in series.values()) - len(everything)
    remark = note(f"Left out: {left_out} points without a drawable value.") if left_out else Markup("")
    return (fit_screens(draw, width) if width < WIDTH else draw(width)) + remark


MOST_BOXES = 2000  # of all rows; each is about 130 bytes


@dataclass(frozen=True)
class Span:
    """A named stretch; of a box the first `waiting_pct` have another colour. The tooltip begins with the name."""

    tooltip: str
    start: float
    end: float
    waiting_pct: float = 0.0


@dataclass(frozen=True)
class TimelineRow:
    """The row of one rank.

    Attributes:
        start, end: of `cells`, in the unit of the axis.
        cells: a place in the palette for each of as many equal parts of that time; None is not drawn.
    """

    label: str
    start: float
    end: float
    cells: Sequence[int | None]
    spans: Sequence[Span] = ()
    boxes: Sequence[Span] = field(default=())


def build_timeline(rows: Sequence[TimelineRow], unit: str) -> Markup:
    """Return all rows over one axis, from 0 to the latest end; of very many boxes the longest are drawn."""
    whole = max(row.end for row in rows)
    least = sorted((box.end - box.start for row in rows for box in row.boxes), reverse=True)[:MOST_BOXES][-1:]
    lanes = Markup("").join(
        Markup('<b>{}</b><div class="lane">{}{}{}</div>').format(
            row.label,
            _draw_spans("spans", row.spans, whole),
            _draw_cells(row, whole),
            _draw_spans("boxes", [b for b in row.boxes if b.end - b.start >= (least or [0])[0]], whole),
        )
        for row in rows
    )
    axis = Markup("").join(
        Markup('<s style="left:{:.4g}%">{}</s>').format(100 * at / whole, format_tick(at))
        for at in ticks(0, whole, 6)
    )
    buttons = Markup("").join(
        Markup('<button type="button" data-zoom="{}" aria-label="{}">{}</button>').format(factor, label, sign)
        for factor, label, sign in (
            (2, "zoom in", "+"),
            (0.5, "zoom out", "−"),
            (0, "the whole", "whole"),
        )
    )
    frame = (
        '<div class="timeline{}"><div class="zoom" hidden>{}</div>'
        '<div class="view" tabindex="0" role="group" aria-label="timeline"><div class="field" data-whole="{}">'
        '{}<b>{}</b><div class="axis">{}</div></div></div></div>'
    )
    return Markup(frame).format(" many" if len(rows) > 4 else "", buttons, f"{whole:.6g}", lanes, unit, axis)


def _draw_spans(css: str, spans: Sequence[Span], whole: float) -> Markup:
    """Draw spans in HTML, because its letters keep their shape when the field becomes wider; the tooltip shows the
    name.
    """
    drawn = [
        Markup('<i title="{}" style="left:{:.5g}%;width:{:.4g}%{}"></i>').format(
            span.tooltip,
            100 * span.start / whole,
            100 * (span.end - span.start) / whole,
            f";--w:{span.waiting_pct:.3g}%" if span.waiting_pct else "",
        )
        for span in spans
    ]
    return Markup('<div class="{}">{}</div>').format(css, Markup("").join(drawn))


def _draw_cells(row: TimelineRow, whole: float) -> Markup:
    """Return one path per colour, with each piece relative to the start of the previous piece."""
    pieces: dict[int, list[str]] = {}
    lasts: dict[int, int] = {}
    place = 0
    for colour, run in groupby(row.cells):
        length = len(list(run))
        if colour is not None:
            pieces.setdefault(colour, []).append(f"m{place - lasts.get(colour, 0)} 0h{length}v1h-{length}z")
            lasts[colour] = place
        place += length
    paths = Markup("").join(
        Markup('<path class="f{}" d="{}"/>').format(colour, "M0 0" + "".join(found))
        for colour, found in pieces.items()
    )
    frame = (
        '<div class="cells"><svg viewBox="0 0 {} 1" preserveAspectRatio="none" aria-hidden="true" '
        'style="left:{:.5g}%;width:{:.5g}%">{}</svg></div>'
    )
    return Markup(frame).format(place, 100 * row.start / whole, 100 * (row.end - row.start) / whole, paths)
