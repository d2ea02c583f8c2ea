from __future__ import annotations

import base64
import hashlib
import re

from markupsafe import Markup

from stratlab.drawing import Section, Tile, build_page, line_chart, tile_row


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


def test_a_tile_says_who_or_that_it_is_nobody() -> None:
    tiles = tile_row([Tile("fastest", "<ddp>", "by 3 %"), Tile("smallest", None, "by <3 %", "so <b>")])
    assert '<div class="answer">&lt;ddp&gt;</div><div>by 3 %</div>' in tiles
    assert 'class="tile open"><div class="asked">smallest</div>' in tiles
    assert '<div>by &lt;3 %</div><div class="means">so &lt;b&gt;</div>' in tiles
