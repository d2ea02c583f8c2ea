"""Charts and tables as they were drawn (tests/data/drawings.json), and what no name from outside can do to pages."""

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from stratlab.drawing import (
    Column,
    Section,
    badge,
    build_page,
    canvas,
    heat_map,
    histogram,
    html_table,
    line_chart,
    link_file,
    scatter,
    stacked_bars,
    waterfall,
)
from stratlab.drawing.canvas import (
    HALF,
    MOST_POINTS,
    Span,
    TimelineRow,
    build_timeline,
    format_tick,
    log_ticks,
    ticks,
)
from tests.stratlab.pinned import check_pinned

HOSTILE = "\"><script>alert('x')</script>&"
BARS = {"ddp": {"forward": 3.0, "backward": 6.0}, "fsdp": {"forward": 4.5, "backward": None}}
POINTS = {"ddp": (40.0, 900.0), "zero2": (20.0, 800.0), "zero3": (12.0, 500.0), "slow": (30.0, 400.0)}
EDGES = [1.0, 10.0, 100.0, 1000.0, 10000.0]
PARTS = {"compute": 30.0, "host": -10.0}
ANIMALS = ([[8, 2], [0, 1]], ["cat", "dog"], ["cat", "dog"])
UNITS = ("step_time_ms_p50", "samples_per_s", "strategy", "peak_memory_gib", "comm_exposed_pct")
SIZES = [{"held_gib": 0.0007, "peak_gib": 17.5}, {"held_gib": None, "peak_gib": 0.001}]
ROWS = [
    TimelineRow("rank 0", 0, 50, [1, 3, 1, None], boxes=[Span("all-reduce, <i>", 25, 50, 40.0)]),
    TimelineRow("rank 1", 50, 100, [3, 1, 3, 1], spans=[Span("forward", 50, 100)]),
]


def draw_axis(low, high):
    """It holds every value and begins at 0 where that is near."""
    return line_chart({"ddp": [(1, low), (2, high)]}, "step", "ms", height=260)


DRAWN = {
    "bars": lambda: stacked_bars(BARS, "ms"),
    "bars with a mark and its words": lambda: stacked_bars(
        {"ddp": {"a": 4.0, "b": 6.0}}, "ms", totals={"ddp": (5.0, "5.00 (10)")}, width=HALF),
    "no bars": lambda: stacked_bars({"ddp": {"a": None}}, "ms"),
    "a line": lambda: line_chart({"a": [(0, 0.0), (5, 10.0), (10, 5.0)]}, "step", "loss"),
    "no line": lambda: line_chart({"a": [(1, None)]}, "x", "loss"),
    "an axis from 0": lambda: draw_axis(1.0, 100.0),
    "an axis far from 0": lambda: draw_axis(90.0, 100.0),
    "an axis below 0": lambda: draw_axis(-50.0, 100.0),
    "an axis a little below 0": lambda: draw_axis(-1.0, 100.0),
    "a matrix by row": lambda: heat_map(*ANIMALS, "truth", "prediction", by_row=True),
    "a matrix": lambda: heat_map(*ANIMALS),
    "a row of zeros": lambda: heat_map([[0.0]], ["a"], ["a"]),
    "no matrix": lambda: heat_map([], [], []),
    "a histogram": lambda: histogram(EDGES, {"compute": [0, 40, 20, 0], "copy": [0, 10, 0, 0]}, "duration (us)"),
    "a histogram from 0": lambda: histogram([0, 10, 100, 1000], {"compute": [5, 10, 1]}, "duration (us)"),
    "dots and their front": lambda: scatter(POINTS, "GiB", "samples per s", front=("ddp", "zero3", "zero2")),
    "dots that are not known": lambda: scatter({**POINTS, "cpu": (None, 3.0), "broken": (1.0, math.nan)}, "GiB", "s"),
    "no dots": lambda: scatter({"a": (None, 1.0)}, "x", "y"),
    "one dot": lambda: scatter({"only": (5.0, 5.0)}, "x", "y", front=("only",)),
    "a near limit": lambda: scatter(POINTS, "GiB", "samples per s", limit=60.0, better="higher"),
    "a limit far away": lambda: scatter(POINTS, "GiB", "losses", limit=400.0, better="lower"),
    "a waterfall": lambda: waterfall(("ddp", 40.0), PARTS, ("fsdp", 60.0), "ms", {"compute": 0, "host": 5}),
    "a waterfall between near totals": lambda: waterfall(("a", 100.0), {"c": 1.0}, ("b", 101.0), "ms", {"c": 0}),
    "a timeline": lambda: build_timeline(ROWS, "ms"),
    "a table": lambda: html_table([{"strategy": "ddp", "peak_memory_gib": 1.5}, {"strategy": "fsdp"}, {}],
                                  ["strategy", Column("peak_memory_gib", digits=2)]),
    "heads with units": lambda: html_table(
        [], [*UNITS, Column("x_ms", header="wait", unit="ms"), Column("x_ms", header="wait")]),
    "truth and what nobody has": lambda: html_table([{"is": True}, {"is": False}], ["is", "peak_memory_gib", "reason"]),
    "sizes": lambda: html_table(SIZES, [Column("held_gib"), Column("peak_gib", "peak", "GiB", 3)]),
    "text and markup": lambda: html_table([{"<k>": "<script>", "b": badge("<fair>", "good")}], ["<k>", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_it_is_drawn_as_it_was(name):
    check_pinned("drawings.json", name, str(DRAWN[name]()))


def read_svg(chart):
    return ET.fromstring(chart[chart.index("<svg ") : chart.index("</svg>") + 6])


def test_every_chart_escapes_names_and_says_what_it_is():
    charts = (
        line_chart({HOSTILE: [(1, 2.0), (2, 3.0)]}, HOSTILE, HOSTILE),
        stacked_bars({HOSTILE: {HOSTILE: 1.0}}, HOSTILE),
        histogram([1, 10, 100], {HOSTILE: [1, 2]}, HOSTILE, HOSTILE),
        scatter({HOSTILE: (1.0, 2.0)}, HOSTILE, HOSTILE, front=(HOSTILE,)),
        waterfall((HOSTILE, 1.0), {HOSTILE: 1.0}, (HOSTILE, 2.0), HOSTILE, {HOSTILE: 0}),
        heat_map([[1.0]], [HOSTILE], [HOSTILE], HOSTILE, HOSTILE),
    )
    for drawn in charts:
        root = read_svg(drawn)  # is well-formed
        assert "<script" not in drawn and root.get("role") == "img" and root.get("aria-label")
        assert any(HOSTILE in (title.text or "") for title in root.iter("title"))


def test_much_is_thinned_and_keeps_its_peaks(monkeypatch):
    points = [(float(x), 1.0) for x in range(20_000)]
    points[12_345] = (12_345.0, 9.0)
    path = next(e for e in read_svg(line_chart({"a": points}, "x", "y")).iter("path")).get("d", "")
    pairs = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
    assert len(pairs) <= MOST_POINTS and len({y for _, y in pairs}) == 2, "the peak and the floor"
    names = [f"food {i}" for i in range(129)]
    matrix = np.eye(101)
    matrix[3, 7] = 2.0
    chart = heat_map(matrix, names[:101], names[:101], by_row=True)  # zeros are one surface
    kinds = [e.get("class") for e in read_svg(chart).iter("rect")]
    assert (kinds[0], kinds.count("h10"), kinds.count("h0"), len(kinds)) == ("h0", 100, 1, 103)
    assert "food 3 / food 7: 2.0 (66.7 %)" in chart and len(chart) < 50_000
    assert "<svg" not in heat_map(np.zeros((129, 129)), names, names)
    monkeypatch.setattr(canvas, "MOST_BOXES", 2)
    boxes = [Span(f"call {length}", 0, length) for length in (1, 5, 2, 4)]
    html = str(build_timeline([TimelineRow("rank 0", 0, 10, [1], boxes=boxes)], "ms"))
    assert re.findall(r'title="(call \d)"', html) == ["call 5", "call 4"], "of very many the longest"


def test_ticks_are_round():
    known = {(0, 10): [0, 2, 4, 6, 8, 10], (97, 103): [98, 100, 102], (-1, 1): [-1, -0.5, 0, 0.5, 1]}
    for (low, high), expected in known.items():
        assert ticks(low, high) == pytest.approx(expected)
    assert log_ticks(0.5, 2000) == pytest.approx([1, 10, 100, 1000])
    assert log_ticks(0.3, 4) == pytest.approx([0.5, 1, 2])
    shown = {0: "0", 0.2: "0.2", 1500: "1,500", 100: "100", 2e7: "2e+07", 2e-5: "2e-05"}
    assert {value: format_tick(value) for value in shown} == shown


def test_a_page_is_one_file_that_loads_nothing_and_runs_its_own_script_alone():
    page = build_page("t", "o", [Section("s", line_chart({"a": [(1, 2.0)]}, "x", "y"))])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in page
    assert not re.findall(r"""<script [^>]|<link|<iframe|https?:|url\(|@import|\bsrc=|\bhref="[^#]""", page)
    hostile = "</title><script>alert(1)</script>"
    page = build_page(hostile, hostile, [Section(hostile, hostile)])
    assert page.count("<script>") == 1 and page.count("&lt;script&gt;") == 6


def test_a_file_is_linked_as_the_page_sees_it(tmp_path):
    page, strange = tmp_path / "demo" / "report", tmp_path / "demo" / "a b#1?<i>"
    strange.mkdir(parents=True)
    place = "../a%20b%231%3F%3Ci%3E/"
    assert link_file("0", strange / "rank0.log", page) == f'<a class="file" href="{place}rank0.log">0</a>'
    assert f'href="{place}">&lt;all&gt;' in link_file("<all>", strange, page)
