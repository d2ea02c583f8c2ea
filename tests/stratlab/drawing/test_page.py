from __future__ import annotations

import re

from markupsafe import Markup

from stratlab.drawing import Section, build_page, line_chart


def test_a_page_is_one_file_that_loads_and_runs_nothing() -> None:
    page = build_page("t", "o", [Section("s", line_chart({"a": [(1, 2.0)]}, "x", "y"))])
    assert page.startswith("<!doctype html>")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in page
    assert not re.findall(r"""<script|<link|<iframe|https?:|url\(|@import|\bsrc=|\bhref=""", page)
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def test_the_origin_and_the_order_of_the_sections_are_kept() -> None:
    page = build_page(
        "T", "backend gloo, 8 steps", [Section("one", Markup("1")), Section("two", Markup("2"))]
    )
    assert "<h1>T</h1>" in page and "backend gloo, 8 steps" in page
    assert page.index("<h2>one</h2>") < page.index("<h2>two</h2>")


def test_what_comes_from_outside_is_escaped() -> None:
    hostile = "</title><script>alert(1)</script>"
    page = build_page(hostile, hostile, [Section(hostile, hostile)])  # type: ignore[arg-type]
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 5
