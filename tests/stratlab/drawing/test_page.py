from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from markupsafe import Markup

from stratlab.drawing import (
    Column,
    Section,
    badge,
    build_page,
    html_table,
    line_chart,
    link_file,
)


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
