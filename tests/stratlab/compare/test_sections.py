"""Sections of the page by themselves: parts, tiles, what is said first, short names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from stratlab.compare.attribution_view import LIGHTER, MOST_COLUMNS, PICTURE, UNEXPLAINED, build_part_table
from stratlab.compare.causes import CAUSES
from stratlab.compare.flags import BUSY_MACHINE, FEW_TIMED_STEPS, UNEQUAL_WARM_UP
from stratlab.compare.measured_view import build_layouts, build_memory_table
from stratlab.compare.summary_view import shorten_names
from stratlab.compare.trust import find_uneven, list_doubts
from stratlab.compare.verdict_view import describe_work, either
from stratlab_spec import step_parts
from tests.stratlab.compare.building import build_bare_row


def pair(run: str = "fsdp", **ms: float) -> dict[str, Any]:
    parts = [
        {"cause": c, "collective": None, "axis": None, "why": None, "ms": value} for c, value in ms.items()
    ]
    return {"run": run, "baseline": "ddp", "parts": parts, "difference_ms": sum(ms.values())}


def read_rows(*pairs: dict[str, Any]) -> list[list[str]]:
    """Text of the cells, strong ones in stars."""
    html = re.sub("</?strong>", "*", build_part_table(pairs))
    return [re.findall(r"<td[^>]*>([^<]*)", row) for row in html.split("<tr>")[2:]]


def test_the_largest_part_comes_first_whatever_its_sign_and_the_remainder_last() -> None:
    rows = read_rows(pair(compute=1.0, host=-20.0, data=5.0, not_traced=0.5))
    assert [row[1] for row in rows] == ["-20.00", "5.00", "1.00", "0.50", "*-13.50*"[1:-1]]
    assert [row[0] for row in rows[:4]] == [step_parts.HOST, step_parts.DATA, step_parts.COMPUTE, UNEXPLAINED]
    rows = read_rows(pair(compute=3.0, host=2.0), pair("zero2", compute=1.0, host=9.0))
    assert [row[0] for row in rows[:2]] == [step_parts.HOST, step_parts.COMPUTE], (
        "of several the larger counts"
    )


@pytest.mark.parametrize(("remainder", "share"), [(4.0, "36 %"), (-10.0, "more than")])
def test_a_remainder_of_more_than_a_quarter_has_weight_and_its_place(remainder: float, share: str) -> None:
    own = {"compute": 6.0, "data": 1.0} if remainder > 0 else {"compute": 11.0}
    rows = read_rows(pair(not_traced=remainder, **own), pair("zero2", compute=9.0, not_traced=3.0))
    (heavy,) = [row for row in rows if UNEXPLAINED in row[0]]
    assert heavy[0].startswith("*") and share in heavy[0] and rows.index(heavy) < 2
    assert heavy[1].startswith("*") and heavy[2] == "3.000"[: len(heavy[2])], (
        "a quarter is not more than a quarter"
    )


def test_of_many_pairs_the_heavy_remainders_are_named_above() -> None:
    pairs = [pair(f"run{i}", compute=6.0, not_traced=4.0 * (i == 0)) for i in range(MOST_COLUMNS + 1)]
    html = build_part_table(pairs)
    assert "40 %" in html and html.count("<strong>4.000</strong>") == 1
    head = [name.strip() for name in re.findall(r"<th scope[^>]*>([^<]*)", html)]
    assert head[1:3] == ["compute", UNEXPLAINED]


def test_a_part_has_one_name_and_one_colour_on_both_pages() -> None:
    parts = {"copies": "copy", "idle": "other_idle"}
    for cause in ("compute", "straggler", "copies", "data", "host", "idle", "bubble"):
        name = step_parts.WORDS[parts.get(cause, cause)]
        assert PICTURE[cause] == (name, step_parts.COLOURS[name]) and CAUSES[cause].more == name
    communication = step_parts.COLOURS[step_parts.COMMUNICATION]
    assert {PICTURE[c][1] % LIGHTER for c in ("more_communication", "less_overlap")} == {communication}


def test_uneven_steps_are_found() -> None:
    even = build_bare_row(step_time_ms_p50=10.0, step_time_ms_p95=29.0)
    uneven = replace(even, run="fsdp", step_time_ms_p95=101.0)
    assert find_uneven([even, replace(even, step_time_ms_p95=None)]) == {}
    assert find_uneven([even, uneven]) == {"fsdp": 10.1}
    assert find_uneven([replace(uneven, status="failed")]) == {}, "it is not compared"


def test_what_was_trained_and_measured() -> None:
    row = {"model": "vit", "dataset": "digits", "global_batch_size": 64, "precision": "fp32"}
    assert describe_work({"runs": [row, {**row, "model": "cnn"}]}).startswith("vit / cnn on digits, 64 ")
    assert describe_work({"runs": [{**row, "model": None}]}) == ""
    values = (8, [2, 4], [1, 5, 3, 4, 9], ["a", "b", "c", "d", "e"])
    assert [either(value) for value in values] == ["8", "2 / 4", "1 to 9", "a / b / c / d / e"]


def report_of(comparison: str, *names: str, **more: Any) -> dict[str, Any]:
    return {"comparison": comparison, "runs": [{"run": name} for name in names], **more}


def test_a_name_is_shortened_only_where_it_stands_by_itself() -> None:
    places = {"not_runs": [{"folder": "example-ddp"}], "sources": [{"run_dir": "example-ddp"}]}
    folder = "/results/a/example-ddp/analysis example-ddp/x x-example-ddp"
    why = "example-ddp is slower than example-ddp-r2: example-ddp."
    report = report_of(
        "example", "example-ddp", "example-ddp-r2", winners={"example-ddp": 1}, why=why, at=folder, **places
    )
    shown, _, prefix = shorten_names(report, [])
    assert prefix == "example-" and shown["winners"] == {"ddp": 1} and shown["at"] == folder
    assert (
        shown["why"] == "ddp is slower than ddp-r2: ddp." and {name: shown[name] for name in places} == places
    )


@pytest.mark.parametrize(
    ("comparison", "names", "begin"),
    [
        ("vit_food101", ("vit-food101-ddp", "vit-food101-fsdp"), "vit-food101-"),  # as a sweep writes them
        ("1d-to-5d", ("s-1d-to-5d-ddp", "s-1d-to-5d-fsdp"), "s-1d-to-5d-"),
        ("llm", ("llm-1d", "llm-2d"), ""),  # short
        ("example", ("example-ddp",), ""),
        ("example", ("example-ddp", "fsdp"), ""),
        ("example", (), ""),
    ],
)
def test_which_names_are_shortened(comparison: str, names: tuple[str, ...], begin: str) -> None:
    shown, _, prefix = shorten_names(report_of(comparison, *names), [])
    assert prefix == begin and [row["run"] for row in shown["runs"]] == [name[len(begin) :] for name in names]


def test_columns_stand_where_a_run_has_their_numbers() -> None:
    known = build_bare_row(forecast_memory_gib=1.25, wire_bytes_per_axis={"tp": 2.0**21}, layout="tp2")
    unknown = build_bare_row("fsdp", layout="dp2")
    assert (
        "1.250" in build_memory_table([known]).html and "foreseen" not in build_memory_table([unknown]).html
    )
    (sent,), (nothing,) = build_layouts([known, unknown]), build_layouts([unknown])
    assert "2.000" in str(sent) and "per axis" in str(sent) and "per axis" not in str(nothing)


def test_flags_of_the_report_are_said_with_their_numbers() -> None:
    flags = [
        {"flag": flag, "values": {"ddp": 86.0, "fsdp": 6.0}, "times_comparable": flag != BUSY_MACHINE}
        for flag in (UNEQUAL_WARM_UP, BUSY_MACHINE, FEW_TIMED_STEPS)
    ]
    said = [doubt.sentence for doubt in list_doubts({"runs": [], "flags": flags})]
    assert len({*said}) == 3 and all("ddp 86, fsdp 6" in each for each in said)
