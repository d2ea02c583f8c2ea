"""One stretch of time, row by row, with the activities of each. It can be zoomed; without the page's script it is
whole.

Every row has up to three lanes: named spans, time by colour, and boxes, which may overlap. Positions in a lane are
percentages of the width, so that zooming is a wider box in one that scrolls (zooming.js).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from markupsafe import Markup

from stratlab.drawing.canvas import format_tick, ticks

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
