"""A zoomable timeline: where its pieces lie, and how much of very much it draws."""

from __future__ import annotations

import re

from stratlab.drawing import timeline
from stratlab.drawing.timeline import Span, TimelineRow, build_timeline


def test_pieces_lie_where_their_time_is() -> None:
    rows = [
        TimelineRow("rank 0", 0, 50, [1, 3, 1, None], boxes=[Span("all-reduce, <i>", 25, 50, 40.0)]),
        TimelineRow("rank 1", 50, 100, [3, 1, 3, 1], spans=[Span("forward", 50, 100)]),
    ]
    html = str(build_timeline(rows, "ms"))
    assert 'title="all-reduce, &lt;i&gt;" style="left:25%;width:25%;--w:40%"' in html
    assert 'title="forward" style="left:50%;width:50%"' in html
    assert re.findall(r"style=\"(left[^\"]*)\"><path", html) == ["left:0%;width:50%", "left:50%;width:50%"]
    assert (
        '<path class="f1" d="M0 0m0 0h1v1h-1zm2 0h1v1h-1z"/><path class="f3" d="M0 0m1 0h1v1h-1z"/>' in html
    )
    assert '<path class="f1" d="M0 0m1 0h1v1h-1zm2 0h1v1h-1z"/>' in html
    ticks = [
        (float(at), float(value)) for at, value in re.findall(r'<s style="left:([\d.]+)%">([\d.]+)<', html)
    ]
    assert len(ticks) > 3 and all(at == value for at, value in ticks)


def test_of_very_many_boxes_the_longest_are_drawn(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(timeline, "MOST_BOXES", 2)
    boxes = [Span(f"call {length}", 0, length) for length in (1, 5, 2, 4)]
    html = str(build_timeline([TimelineRow("rank 0", 0, 10, [1], boxes=boxes)], "ms"))
    assert re.findall(r'title="(call \d)"', html) == ["call 5", "call 4"]
