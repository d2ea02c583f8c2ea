from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, TABLE
from tests.mutants.drawing import (
    SEED,
    build_slip,
    draw_slips,
    format_slip,
    format_text,
    is_drawable,
    read_sources,
)
from tests.mutants.operators import find_places
from tests.mutants.slip import read_slips

LONG = "".join(
    f"def f{i}(a, b):\n    if a < b:\n        return max(a, b) * 1000\n    return a[0]\n" for i in range(30)
)
SOURCES = {"trainer/long.py": LONG, "stratlab/short.py": "def g(a):\n    return a == 3\n"}
DRAWN = [slip for slip in read_slips(TABLE) if slip.operator]


def test_a_seed_gives_the_same_rows_again_and_another_one_others():
    rows = list(draw_slips(SOURCES, 1, 20))
    assert rows == list(draw_slips(SOURCES, 1, 20))
    assert rows[:10] == list(draw_slips(SOURCES, 1, 10)), "more rows leave the first ones alone"
    assert rows != list(draw_slips(SOURCES, 2, 20))
    assert [row.name for row in rows] == [f"drawn-{number:02}" for number in range(1, 21)]


def test_rows_differ_and_long_modules_have_more_of_them():
    rows = list(draw_slips(SOURCES, 1, 40))
    assert len({(row.file, row.search, row.replacement) for row in rows}) == 40
    assert Counter(row.file for row in rows)["trainer/long.py"] > 30


@pytest.mark.parametrize("row", list(draw_slips(SOURCES, 1, 40)), ids=lambda row: row.name)
def test_a_row_s_text_stands_once_in_its_file(row):
    text = SOURCES[row.file]
    assert text.count(row.search) == 1 and row.search != row.replacement
    assert is_drawable(row, text)
    assert not is_drawable(replace(row, replacement=f"{row.replacement}  # by hand"), text)


def test_neighbouring_lines_are_taken_in_until_the_text_is_unique():
    text = "a = 1\nb = 0\nc = 2\nb = 0\n"
    places = [place for place in find_places(text) if place.old == "0" and place.new == "1"]
    assert [build_slip(1, "x.py", text, place).search for place in places] == ["a = 1\nb = 0", "c = 2\nb = 0"]


@pytest.mark.parametrize("text", ["a", "it's", 'a "b"', "a\n  b\\n", "'''", "ends with '", "\\d\n'", "ü\n\n"])
def test_texts_come_back_out_of_the_table(text):
    assert tomllib.loads(f"a = {format_text(text)}")["a"] == text


def test_a_row_comes_back_out_of_the_table(tmp_path: Path):
    slip = replace(next(draw_slips(SOURCES, SEED, 1)), tests=("tests/test_a.py", "tests/test_b.py"))
    (tmp_path / "drawn.toml").write_text(format_slip(slip))
    assert read_slips(tmp_path) == [slip]


def test_the_committed_rows_are_of_the_operators():
    """While the sources move on, drawing again gives other rows. That nobody has put in rows of their own shows in
    this: each is still what its operator makes of today's file."""
    sources = read_sources()
    assert len(DRAWN) >= 50 and [slip.name for slip in DRAWN] == sorted(slip.name for slip in DRAWN)
    assert [slip.name for slip in DRAWN if not is_drawable(slip, sources[slip.file])] == []


def test_the_command_prints_a_row_with_its_tests(tmp_path: Path):
    command = [sys.executable, "-m", "tests.mutants.drawing", "--first", "2", "--last", "3"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (tmp_path / "drawn.toml").write_text(printed)
    rows = read_slips(tmp_path)
    assert [row.name for row in rows] == ["drawn-02", "drawn-03"]
    assert all((ROOT / test).is_file() for row in rows for test in row.tests) and all(
        row.tests for row in rows
    )
