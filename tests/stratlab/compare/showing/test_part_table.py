"""Parts by size, the remainder called what it is, and the names of a run's page."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stratlab.compare.explaining.causes import CAUSES
from stratlab.compare.showing.part_table import COLOURS, MOST_COLUMNS, UNEXPLAINED, build_part_table
from stratlab.run_directory import step_parts
from stratlab.run_directory.step_parts import OF_PART


def build_pair(run: str = "fsdp", **ms: float) -> dict[str, Any]:
    parts = [
        {"cause": cause, "collective": None, "axis": None, "why": None, "ms": value}
        for cause, value in ms.items()
    ]
    return {"run": run, "baseline": "ddp", "parts": parts, "difference_ms": sum(ms.values())}


def read_rows(*pairs: dict[str, Any]) -> list[list[str]]:
    """Text of the cells, strong ones in stars."""
    html = re.sub("</?strong>", "*", build_part_table(pairs))
    return [re.findall(r"<td[^>]*>([^<]*)", row) for row in html.split("<tr>")[2:]]


def test_the_largest_part_comes_first_whatever_its_sign() -> None:
    rows = read_rows(build_pair(compute=1.0, host=-20.0, data=5.0, not_traced=0.5))
    assert rows == [
        ["waiting for the host", "-20.00"],
        ["waiting for data", "5.00"],
        ["compute", "1.00"],
        ["not explained by the traced steps", "0.50"],
        ["*difference of the step times*", "-13.50"],
    ]


def test_of_several_pairs_the_larger_number_counts() -> None:
    rows = read_rows(build_pair(compute=3.0, host=2.0), build_pair("zero2", compute=1.0, host=9.0))
    assert [row[0] for row in rows[:2]] == ["waiting for the host", "compute"]


def test_a_remainder_of_more_than_a_quarter_has_weight_and_its_place() -> None:
    rows = read_rows(
        build_pair(compute=6.0, not_traced=4.0, data=1.0), build_pair("zero2", compute=9.0, not_traced=3.0)
    )
    assert [row[0] for row in rows] == [
        "compute",
        "*not explained by the traced steps: 36 % of the difference fsdp − ddp*",
        "waiting for data",
        "*difference of the step times*",
    ]
    assert rows[1][1:] == ["*4.000*", "3.000"], "a quarter is not more than a quarter"


def test_a_remainder_against_the_difference_counts_as_much() -> None:
    rows = read_rows(build_pair(compute=20.0, not_traced=-10.0))
    assert rows[1][0] == "*not explained by the traced steps: 100 % of the difference fsdp − ddp*"


def test_of_many_pairs_the_heavy_remainders_are_named_above() -> None:
    pairs = [build_pair(f"run{i}", compute=6.0, not_traced=4.0 * (i == 0)) for i in range(MOST_COLUMNS + 1)]
    html = build_part_table(pairs)
    assert "not explained by the traced steps: 40 % of the difference run0 − ddp." in html
    assert html.count("<strong>4.000</strong>") == 1
    head = [name.strip() for name in re.findall(r"<th scope[^>]*>([^<]*)", html)]
    assert head[:3] == ["runs", "compute", UNEXPLAINED] and head[-1] == "difference"


@pytest.mark.parametrize(
    ("cause", "part"),
    [
        *(("compute", "compute"), ("straggler", "straggler"), ("copies", "copy"), ("data", "data")),
        *(("host", "host"), ("idle", "other_idle"), ("bubble", "bubble")),
    ],
)
def test_a_part_has_one_name_on_both_pages(cause: str, part: str) -> None:
    name = OF_PART[part]
    assert CAUSES[cause].more == name and CAUSES[cause].less == f"less {name}"
    place = next(place for shown, place in COLOURS.items() if name in shown)
    grouped = name in (step_parts.COPIES, step_parts.IDLE)
    assert grouped or place == step_parts.COLOURS[name], "and one colour"
