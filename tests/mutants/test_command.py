"""The command that plants slips, on a tree of two files; and the table against the tree as it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, TABLE, main
from tests.mutants.planting import RunTests
from tests.mutants.slip import find_problems, read_slips

ROW = (
    '[[slip]]\nname = "{}"\nsays = ""\nfile = "sums.py"\nsearch = "{}"\nreplacement = "{}"\n'
    'tests = ["test_sums.py"]\n'
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project whose test sees the first slip of its table and not the second."""
    root = tmp_path / "project"
    (root / "slips").mkdir(parents=True)
    (root / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef idle():\n    return 0\n")
    (root / "test_sums.py").write_text("def test_sum():\n    pass\n")
    (root / "slips" / "a.toml").write_text(ROW.format("sum", "a + b", "a - b"))
    (root / "slips" / "b.toml").write_text(ROW.format("unseen", "return 0", "return 1"))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def call(tree: Path, run: RunTests, *arguments: str) -> int:
    return main(["--workers", "1", *arguments], tree, tree / "slips", tree / "found.json", run)


def stand_in(calls: list[Sequence[str]]) -> RunTests:
    """pytest as far as it matters here: imports the code of the tree and looks at its sum."""

    def run(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
        calls.append(tests)
        scope: dict = {}
        exec((tree / "sums.py").read_text(), scope)
        return (0, "") if scope["add"](1, 2) == 3 else (1, "test_sums.py::test_sum")

    return run


def test_a_survivor_ends_with_1_and_what_was_caught_is_not_tried_again(tree, capsys):
    calls: list[Sequence[str]] = []
    run = stand_in(calls)
    assert call(tree, run) == 1
    printed = capsys.readouterr().out
    assert "caught      fast    sum" in printed and "survived            unseen" in printed
    assert "planted 2, caught 1 (50.0 %), by the fast tier alone 1 (50.0 %), named as equivalent 0" in printed
    assert "not caught: unseen" in printed
    assert len(calls) == 3  # one each, and what saw the first without it
    assert call(tree, run) == 1 and len(calls) == 4  # the survivor alone
    assert call(tree, run, "sum") == 0 and len(calls) == 4
    assert call(tree, run, "sum", "--again") == 0 and len(calls) == 6
    (tree / "test_sums.py").write_text((tree / "test_sums.py").read_text() + "\n")
    assert call(tree, run, "sum") == 0 and len(calls) == 8  # its test has changed
    assert (tree / "sums.py").read_text().count("a + b") == 1


def test_it_goes_on_where_it_was_interrupted(tree):
    """The first slip's result is on disk before the second one is planted."""
    calls: list[Sequence[str]] = []
    run = stand_in(calls)

    def interrupted(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(tree, tests)

    with pytest.raises(KeyboardInterrupt):
        call(tree, interrupted)
    assert list(json.loads((tree / "found.json").read_text())["slips"]) == ["sum"]
    call(tree, run)
    assert len(calls) == 3


def test_an_equivalent_slip_is_named_and_is_no_survivor(tree, capsys):
    with (tree / "slips" / "b.toml").open("a") as table:
        table.write('equivalent = "nobody calls it"\n')
    run = stand_in(calls := [])
    assert call(tree, run) == 0
    assert "equivalent          unseen" in (printed := capsys.readouterr().out)
    assert "planted 2, caught 1 (100.0 %)" in printed and "named as equivalent 1, survived 0" in printed
    found = json.loads((tree / "found.json").read_text())
    assert found["count"]["planted"] == 2 and found["slips"]["unseen"]["outcome"] == "survived"
    assert call(tree, run) == 0 and len(calls) == 3  # known


def test_tests_that_fail_without_a_slip_show_nothing(tree, capsys):
    assert call(tree, lambda tree, tests: (1, "")) == 1
    printed = capsys.readouterr().out
    assert "broken              sum" in printed and "not caught: sum, unseen" in printed


def test_a_text_that_is_gone_ends_with_2(tree, capsys):
    assert call(tree, stand_in([]), "other") == 2 and "other: no slip of the table" in capsys.readouterr().err
    (tree / "sums.py").write_text("def add(a, b):\n    return sum((a, b))\n")
    assert call(tree, stand_in([])) == 2
    assert "sum: sums.py holds the text 0 times, expected once" in capsys.readouterr().err


def test_the_table_fits_the_tree():
    slips = read_slips(TABLE)
    assert find_problems(slips, ROOT) == [] and len(slips) >= 150
