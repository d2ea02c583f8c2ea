from __future__ import annotations

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup

from stratlab.drawing import (
    Column,
    Section,
    badge,
    build_page,
    heat_map,
    histogram,
    html_table,
    line_chart,
    link_file,
    scatter,
    stacked_bars,
    waterfall,
)
from stratlab.drawing.canvas import HALF, MOST_POINTS, NARROW, WIDTH, format_tick, log_ticks, ticks

HOSTILE = "\"><script>alert('x')</script>&"


def _svg(chart: Markup) -> ET.Element:
    return ET.fromstring(chart[chart.index("<svg ") : chart.index("</svg>") + 6])


def _titles(chart: Markup) -> list[str]:
    return [e.text or "" for e in _svg(chart).iter("title")]


def _texts(chart: Markup) -> list[str]:
    return [e.text or "" for e in _svg(chart).iter("text")]


def _charts(name: str) -> dict[str, Markup]:
    return {
        "line_chart": line_chart({name: [(1, 2.0), (2, 3.0)]}, name, name),
        "stacked_bars": stacked_bars({name: {name: 1.0}}, name),
        "histogram": histogram([1, 10, 100], {name: [1, 2]}, name, name),
        "scatter": scatter({name: (1.0, 2.0)}, name, name, front=(name,)),
        "waterfall": waterfall((name, 1.0), {name: 1.0}, (name, 2.0), name, {name: 0}),
        "heat_map": heat_map([[1.0]], [name], [name], name, name),
    }


def test_every_chart_escapes_names_and_says_what_it_is() -> None:
    for chart, drawn in _charts(HOSTILE).items():
        assert "<script" not in drawn, chart
        root = _svg(drawn)  # is well-formed
        assert root.get("role") == "img" and root.get("aria-label")
        assert any(HOSTILE in title for title in _titles(drawn))


def test_bars_are_in_proportion_and_labelled() -> None:
    parts = {"ddp": {"forward": 3.0, "backward": 6.0}, "fsdp": {"forward": 4.5, "backward": None}}
    chart = stacked_bars(parts, "ms")
    bars = {e.find("title").text: e for e in _svg(chart).iter("rect") if e.find("title") is not None}  # type: ignore[union-attr]
    assert list(bars) == [
        "ddp, forward: 3.0 ms (33.3 %)",
        "ddp, backward: 6.0 ms (66.7 %)",
        "fsdp, forward: 4.5 ms (100.0 %)",
    ]
    first, second, other = bars.values()
    widths = [float(bar.get("width", 0)) for bar in (first, second, other)]
    assert widths == pytest.approx([widths[0], 2 * widths[0], 1.5 * widths[0]], abs=0.02)
    assert float(second.get("x", 0)) == pytest.approx(float(first.get("x", 0)) + widths[0], abs=0.02)
    assert first.get("class") == other.get("class")
    assert {"ddp", "fsdp", "forward", "backward", "9.0", "4.5", "ms"} <= set(_texts(chart))


def test_where_nothing_is_known_nothing_is_drawn() -> None:
    assert "fsdp" in stacked_bars({"ddp": {"a": 1.0}, "fsdp": {"a": None}}, "ms")
    charts = (stacked_bars({"ddp": {"a": None}}, "ms"), stacked_bars({}, "ms"))
    charts += (line_chart({"a": [(1, None)]}, "x", "loss"), heat_map([], [], []))
    assert not any("<svg" in chart for chart in charts) and all(charts)


def test_a_line_has_its_points_in_place() -> None:
    chart = line_chart({"a": [(0, 0.0), (5, 10.0), (10, 5.0)]}, "step", "loss")
    dots = [(float(e.get("cx", 0)), float(e.get("cy", 0))) for e in _svg(chart).iter("circle")]
    assert dots[1][0] == pytest.approx((dots[0][0] + dots[2][0]) / 2, abs=0.1)
    assert dots[1][1] < dots[2][1] < dots[0][1]  # y grows downwards
    assert dots[2][1] == pytest.approx((dots[0][1] + dots[1][1]) / 2, abs=0.1)
    assert "a: 10.0 at 5" in _titles(chart)


def test_a_long_line_is_thinned_and_keeps_its_peaks() -> None:
    points = [(float(x), 1.0) for x in range(20_000)]
    points[12_345] = (12_345.0, 9.0)
    path = next(e for e in _svg(line_chart({"a": points}, "x", "y")).iter("path")).get("d", "")
    pairs = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
    assert len(pairs) <= MOST_POINTS
    heights = sorted({y for _, y in pairs})
    assert len(heights) == 2  # the peak and the floor


@pytest.mark.parametrize(
    ("low", "high", "bottom"),
    [(1.0, 100.0, 0.0), (0.0, 10.0, 0.0), (90.0, 100.0, 89.5), (-50.0, 100.0, -57.5), (-1.0, 100.0, -6.05)],
)
def test_the_axis_holds_every_value_and_begins_at_0_where_that_is_near(
    low: float, high: float, bottom: float
) -> None:
    root = _svg(line_chart({"ddp": [(1, low), (2, high)]}, "step", "ms", height=260))
    border = float((root.get("viewBox") or "").split()[3]) - 40
    (first, _) = [float(dot.get("cy") or 0) for dot in root.iter("circle")]
    top = high + 0.05 * (high - low)
    assert border - first == pytest.approx(260 * (low - bottom) / (top - bottom), abs=0.1)


def test_a_heat_map_shows_every_cell() -> None:
    chart = heat_map([[8, 2], [0, 1]], ["cat", "dog"], ["cat", "dog"], "truth", "prediction", by_row=True)
    assert {"truth", "prediction", "cat", "dog", "8", "2", "1"} <= set(_texts(chart))
    assert "cat / dog: 2.0 (20.0 %)" in _titles(chart)
    assert [e.get("class") for e in _svg(chart).iter("rect")] == ["h8", "h2", "h0", "h10"]
    whole = heat_map([[8, 2], [0, 1]], ["cat", "dog"], ["cat", "dog"])
    assert [e.get("class") for e in _svg(whole).iter("rect")] == ["h10", "h3", "h0", "h2"]
    assert all(float(e.get("x", 0)) < WIDTH for e in _svg(chart).iter("rect"))


def test_the_zeros_of_many_classes_are_one_surface_and_too_many_are_not_drawn() -> None:
    """Food-101's classes: a page with a matrix for each of some runs stays one that can be sent and kept."""
    names = [f"food {i}" for i in range(129)]
    matrix = np.eye(101)
    matrix[3, 7] = 2.0
    chart = heat_map(matrix, names[:101], names[:101], by_row=True)
    kinds = [e.get("class") for e in _svg(chart).iter("rect")]
    assert kinds[0] == "h0" and kinds.count("h10") == 100 and kinds[1:].count("h0") == 0 and len(kinds) == 103
    assert "food 3 / food 7: 2.0 (66.7 %)" in _titles(chart) and len(chart) < 50_000
    assert "<svg" not in heat_map(np.zeros((129, 129)), names, names)
    assert "h0" in heat_map([[0.0]], ["a"], ["a"])  # an empty row divides by nothing


def test_ticks_are_round() -> None:
    known = {(0, 10): [0, 2, 4, 6, 8, 10], (97, 103): [98, 100, 102], (-1, 1): [-1, -0.5, 0, 0.5, 1]}
    for (low, high), expected in known.items():
        assert ticks(low, high) == pytest.approx(expected)
    assert log_ticks(0.5, 2000) == pytest.approx([1, 10, 100, 1000])
    assert log_ticks(0.3, 4) == pytest.approx([0.5, 1, 2])
    shown = {0: "0", 0.2: "0.2", 1500: "1,500", 100: "100", 2e7: "2e+07", 2e-5: "2e-05"}
    assert {value: format_tick(value) for value in shown} == shown


EDGES = [1.0, 10.0, 100.0, 1000.0, 10000.0]


def _bars(chart: Markup) -> dict[str, ET.Element]:
    """By title; the keys have none."""
    return {t.text or "": bar for bar in ET.fromstring(chart).iter("rect") for t in bar.iter("title")}


def test_a_decade_is_as_wide_as_any_other_and_classes_stand_on_each_other() -> None:
    chart = histogram(EDGES, {"compute": [0, 40, 20, 0], "copy": [0, 10, 0, 0]}, "duration (us)")
    bars = _bars(chart)
    titles = ["compute, 10.0 to 100.0: 40", "copy, 10.0 to 100.0: 10", "compute, 100.0 to 1,000: 20"]
    assert list(bars) == titles
    first, copy, second = bars.values()
    assert float(first.get("width", 0)) == pytest.approx(float(second.get("width", 0)), abs=0.02)
    assert float(first.get("height", 0)) == pytest.approx(2 * float(second.get("height", 0)), abs=0.05)
    end = float(copy.get("y", 0)) + float(copy.get("height", 0))
    assert end == pytest.approx(float(first.get("y", 0)), abs=0.05)
    assert (first.get("class"), copy.get("class")) == ("f0", "f1")
    numbers = {element.text for element in ET.fromstring(chart).iter("text")}
    assert {"10", "100", "1,000"} <= numbers and "10,000" not in numbers  # empty ends are cut off


POINTS = {"ddp": (40.0, 900.0), "zero2": (20.0, 800.0), "zero3": (12.0, 500.0), "slow": (30.0, 400.0)}


def _dots(chart: Markup) -> dict[str, ET.Element]:
    root = ET.fromstring(chart[chart.index("<svg ") : chart.index("</svg>") + 6])
    return {(t.text or "").split(":")[0]: c for c in root.iter("circle") for t in c.iter("title")}


def test_dots_lie_where_their_numbers_say_and_the_front_is_joined_in_order() -> None:
    chart = scatter(POINTS, "GiB", "samples per s", front=("ddp", "zero3", "zero2"))
    dots = _dots(chart)
    at = {name: (float(dot.get("cx", 0)), float(dot.get("cy", 0))) for name, dot in dots.items()}
    assert at["zero3"][0] < at["zero2"][0] < at["slow"][0] < at["ddp"][0]
    assert at["ddp"][1] < at["zero2"][1] < at["zero3"][1] < at["slow"][1]  # up is more
    classes = {name: dot.get("class") for name, dot in dots.items()}
    assert classes == {"ddp": "f0", "zero2": "f0", "zero3": "f0", "slow": "f7"}
    (path, _) = ET.fromstring(chart).iter("path")
    corners = [tuple(map(float, piece.split())) for piece in path.get("d", "")[1:].split("L")]
    assert corners == [at["zero3"], at["zero2"], at["ddp"]]
    assert "ddp: 900.0 samples per s at 40.0 GiB" in chart


def test_what_is_not_known_is_left_out_and_named() -> None:
    chart = scatter({**POINTS, "cpu": (None, 3.0), "broken": (1.0, math.nan)}, "GiB", "samples per s")
    assert set(_dots(chart)) == set(POINTS) and "cpu, broken" in chart and "<path" not in chart
    assert "<svg" not in scatter({"a": (None, 1.0)}, "x", "y")
    assert set(_dots(scatter({"only": (5.0, 5.0)}, "x", "y", front=("only",)))) == {"only"}


def test_a_limit_is_a_line_where_it_is_near_and_a_word_where_not_and_an_arrow_leads_to_the_better_side() -> (
    None
):
    for limit, lines in ((60.0, 1), (400.0, 0)):
        chart = scatter(POINTS, "GiB per rank", "samples per s", limit=limit, better="higher")
        root = _svg(chart)
        (said,) = [text for text in _texts(chart) if f"{limit:g} GiB" in text]
        drawn = [float(e.get("x1", 0)) for e in root.iter("line") if e.get("class") == "limit"]
        assert len(drawn) == lines and said
        assert all(x > float(_dots(chart)["ddp"].get("cx", 0)) for x in drawn)
    heights = [
        next(
            float(e.get("y", 0))
            for e in _svg(scatter(POINTS, "x", "y", better=side)).iter("text")
            if "↖" in str(e.text) or "↙" in str(e.text)
        )
        for side in ("higher", "lower")
    ]
    assert heights[0] < heights[1], "y grows downwards"


def test_a_waterfall_leads_from_one_total_to_the_other_a_part_at_a_time() -> None:
    chart = waterfall(
        ("ddp", 40.0), {"compute": 30.0, "host": -10.0}, ("fsdp", 60.0), "ms", {"compute": 0, "host": 5}
    )
    bars = {
        title.partition(":")[0]: bar
        for title, bar in _bars(Markup(chart[chart.index("<svg ") : chart.index("</svg>") + 6])).items()
    }
    ends = {
        name: (float(b.get("x", 0)), float(b.get("x", 0)) + float(b.get("width", 0)))
        for name, b in bars.items()
    }
    assert list(ends) == ["ddp", "compute", "host", "fsdp"]
    assert ends["compute"][0] == pytest.approx(ends["ddp"][1], abs=0.1), "begins where the one before it ends"
    assert ends["host"][1] == pytest.approx(ends["compute"][1], abs=0.1) and ends["host"][0] == pytest.approx(
        ends["fsdp"][1], abs=0.1
    )
    assert (ends["ddp"][1] - ends["ddp"][0]) / (ends["fsdp"][1] - ends["fsdp"][0]) == pytest.approx(
        40 / 60, abs=0.01
    )
    assert [bars[name].get("class") for name in ("compute", "host")] == ["f0", "f5"]
    near = waterfall(("a", 100.0), {"compute": 1.0}, ("b", 101.0), "ms", {"compute": 0})
    assert "99.5" in near, "near totals: the axis begins where they differ, and says so"


def test_a_mark_and_its_words_stand_for_the_sum() -> None:
    chart = stacked_bars({"ddp": {"a": 4.0, "b": 6.0}}, "ms", totals={"ddp": (5.0, "5.00 (10)")}, width=HALF)
    (mark,) = [e for e in _svg(chart).iter("line") if e.get("class") == "mark"]
    first, second = [bar for bar in _svg(chart).iter("rect") if bar.find("title") is not None]
    begin = float(first.get("x", 0))
    whole = float(second.get("x", 0)) + float(second.get("width", 0)) - begin
    assert float(mark.get("x1", 0)) == pytest.approx(begin + whole / 2, abs=0.1)
    assert "5.00 (10)" in _texts(chart) and "10.0" not in _texts(chart)
    widths = re.findall(r'viewBox="0 0 (\d+)', chart)
    assert widths == [f"{HALF:g}", f"{NARROW:g}"]


def test_a_page_is_one_file_that_loads_nothing_and_runs_its_own_script_alone() -> None:
    page = build_page("t", "o", [Section("s", line_chart({"a": [(1, 2.0)]}, "x", "y"))])
    assert page.startswith("<!doctype html>")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in page
    assert not re.findall(r"""<script [^>]|<link|<iframe|https?:|url\(|@import|\bsrc=|\bhref="[^#]""", page)
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def test_what_comes_from_outside_is_escaped() -> None:
    hostile = "</title><script>alert(1)</script>"
    page = build_page(hostile, hostile, [Section(hostile, hostile)])  # type: ignore[arg-type]
    assert page.count("<script>") == 1
    assert (
        page.count("&lt;script&gt;") == 6
    )  # title, heading, origin, contents, title and text of the section


def test_contents_lead_to_sections_and_what_has_nothing_to_show_is_one_line() -> None:
    sections = [
        Section("one", Markup("<p>1</p>")),
        Section("none", nothing="no GPU"),
        Section("two", Markup("2")),
    ]
    page = build_page("T", "o", sections, ["Measured on a <CPU>."])
    contents = page.partition("<nav")[2].partition("</nav>")[0]
    assert re.findall(r'href="#(s\d)">(\w+)', contents) == [("s1", "one"), ("s2", "two")]
    assert re.findall(r'<section id="(s\d)">\s*<h2>(\w+)', page) == [("s1", "one"), ("s2", "two")]
    assert page.index("none (no GPU)") > page.index("<h2>two</h2>")
    assert "<p>Measured on a &lt;CPU&gt;.</p>" in page.partition('class="banner"')[2]
    assert 'class="banner"' not in build_page("T", "o", sections)


def test_folded_parts_stand_last_and_are_led_to() -> None:
    sections = [Section("one", Markup("1"), folded=True), Section("two", Markup("2"), half=True)]
    page = build_page("T", "o", sections, lead=Markup("<p>the answer</p>"))
    opened, _, folded = page.partition('<div class="folds">')
    assert "<h2>two</h2>" in opened and '<summary><h2>one</h2></summary><section id="s1">' in folded
    assert (
        opened.index("the answer")
        < opened.index('href="#s1"')
        < opened.index('<section id="s2" class="half">')
    )


def _cells(table: str, tag: str) -> list[tuple[str, str | None]]:
    return [("".join(e.itertext()), e.get("class")) for e in ET.fromstring(table).iter(tag)]


def test_numbers_are_right_aligned_and_missing_values_are_a_dash() -> None:
    table = html_table(
        [{"strategy": "ddp", "peak_memory_gib": 1.5}, {"strategy": "fsdp", "peak_memory_gib": None}, {}],
        ["strategy", Column("peak_memory_gib", digits=2)],
    )
    assert _cells(table, "td") == [
        ("ddp", None),
        ("1.50", "num"),
        ("fsdp", None),
        ("-", "num"),
        ("-", None),
        ("-", "num"),
    ]


def test_a_header_names_the_unit() -> None:
    headers = {
        "step_time_ms_p50": "step time p50 ms",
        "samples_per_s": "samples per s",
        "strategy": "strategy",
    }
    headers |= {"peak_memory_gib": "peak memory GiB", "comm_exposed_pct": "comm exposed %"}
    table = html_table(
        [], [*headers, Column("x_ms", header="wait", unit="ms"), Column("x_ms", header="wait")]
    )
    assert [text for text, _ in _cells(table, "th")] == [*headers.values(), "wait ms", "wait"]


def test_text_is_escaped_and_markup_is_not() -> None:
    table = html_table([{"<k>": "<script>x</script>", "b": badge("<fair>", "good")}], ["<k>", "b"])
    assert "<script>" not in table
    assert "&lt;script&gt;x&lt;/script&gt;" in table
    assert '<span class="badge good">&lt;fair&gt;</span>' in table


def test_truth_values_are_text_and_a_column_that_nobody_has_keeps_its_side() -> None:
    cells = _cells(html_table([{"matters": True}, {"matters": False}], ["matters"]), "td")
    assert cells == [("yes", None), ("no", None)]
    assert _cells(html_table([{}], ["peak_memory_gib", "reason"]), "td") == [("-", "num"), ("-", None)]


def test_a_column_of_small_sizes_is_in_mib_and_one_of_large_stays() -> None:
    rows = [{"held_gib": 0.0007, "peak_gib": 17.5}, {"held_gib": None, "peak_gib": 0.001}]
    table = html_table(rows, [Column("held_gib"), Column("peak_gib", "peak", "GiB", 3)])
    assert 'held <span class="unit">MiB</span>' in table and ">0.7168<" in table and ">-<" in table
    assert 'peak <span class="unit">GiB</span>' in table and ">17.500<" in table and ">0.001<" in table
    assert rows[0]["held_gib"] == 0.0007


def test_a_file_is_linked_as_the_page_sees_it(tmp_path: Path) -> None:
    page = tmp_path / "demo" / "report"
    strange = tmp_path / "demo" / "a b#1?<i>"
    strange.mkdir(parents=True)
    assert link_file("rank 0", strange / "rank0.log", page) == (
        '<a class="file" href="../a%20b%231%3F%3Ci%3E/rank0.log">rank 0</a>'
    )
    assert 'href="../a%20b%231%3F%3Ci%3E/"' in link_file("<all>", strange, page)
    assert "&lt;all&gt;" in link_file("<all>", strange, page)
