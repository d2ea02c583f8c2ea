from __future__ import annotations

import xml.etree.ElementTree as ET

from stratlab.drawing import Column, badge, html_table


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
