"""The command that plants slips, on a tree of two files; and the table against the tree as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.slip import Slip, find_problems, planted, read_slips
from tests.mutants.survivors import ROOT, TABLE, RunTests, main, run_tests, try_slip

SLIP = Slip("sum", "a difference", "sums.py", "a + b", "a - b", ("test_sums.py::test_sum",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project whose test sees the first slip of its table and not the second."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef idle():\n    return 0\n")
    (root / "test_sums.py").write_text(
        "from sums import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    )
    (root / "survivors.toml").write_text(
        "".join(
            f'[[slip]]\nname = "{name}"\nsays = ""\nfile = "sums.py"\nsearch = "{search}"\n'
            f'replacement = "{new}"\ntests = ["test_sums.py::test_sum"]\n'
            for name, search, new in (("sum", "a + b", "a - b"), ("unseen", "return 0", "return 1"))
        )
    )
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def call(tree: Path, run: RunTests, *arguments: str) -> int:
    return main(list(arguments), tree, tree / "survivors.toml", tree / "found.json", run)


def stand_in(calls: list[Sequence[str]]):
    """pytest as far as it matters here: imports the code of the tree and looks at its sum."""

    def run(tree: Path, tests: Sequence[str]) -> int:
        calls.append(tests)
        scope: dict = {}
        exec((tree / "sums.py").read_text(), scope)
        return 0 if scope["add"](1, 2) == 3 else 1

    return run


def test_a_survivor_ends_with_1_and_what_was_caught_is_not_tried_again(tree, capsys):
    calls: list[Sequence[str]] = []
    run = stand_in(calls)
    assert call(tree, run) == 1
    printed = capsys.readouterr().out
    assert "caught    sum" in printed and "survived  unseen" in printed
    assert "1 of 2 slips are caught: not unseen" in printed
    assert len(calls) == 3  # without any, and one each
    assert call(tree, run) == 1 and len(calls) == 5  # the survivor alone
    assert call(tree, run, "sum") == 0 and len(calls) == 5
    assert call(tree, run, "sum", "--again") == 0 and len(calls) == 7
    (tree / "test_sums.py").write_text((tree / "test_sums.py").read_text() + "\n")
    assert call(tree, run, "sum") == 0 and len(calls) == 9  # its test has changed
    assert (tree / "sums.py").read_text().count("a + b") == 1


def test_tests_that_fail_without_a_slip_show_nothing(tree, capsys):
    assert call(tree, lambda tree, tests: 1) == 1
    assert "they do not pass: python -m pytest test_sums.py::test_sum" in capsys.readouterr().err


def test_a_text_that_is_gone_ends_with_2(tree, capsys):
    assert call(tree, stand_in([]), "other") == 2 and "other: no slip of the table" in capsys.readouterr().err
    (tree / "sums.py").write_text("def add(a, b):\n    return sum((a, b))\n")
    assert call(tree, stand_in([])) == 2
    assert "sum: sums.py holds the text 0 times, expected once" in capsys.readouterr().err


def test_what_a_table_may_get_wrong(tree):
    assert find_problems([SLIP], tree) == []
    wrong = replace(SLIP, replacement=SLIP.search, tests=("test_sums.py::test_other", "none.py::test_sum"))
    assert find_problems([SLIP, wrong], tree) == [
        "sum: stands in the table more than once",
        "sum: changes nothing",
        "sum: there is no test_sums.py::test_other",
        "sum: there is no none.py::test_sum",
    ]
    assert find_problems([replace(SLIP, search="a")], tree)[0].startswith("sum: sums.py holds the text ")


def test_a_slip_is_taken_back_and_a_test_that_cannot_run_is_no_proof(tree):
    before = (tree / "sums.py").read_text()
    with pytest.raises(KeyboardInterrupt), planted(SLIP, tree):
        assert "a - b" in (tree / "sums.py").read_text()
        raise KeyboardInterrupt
    assert (tree / "sums.py").read_text() == before
    assert [try_slip(SLIP, tree, lambda tree, tests, code=code: code) for code in (0, 1, 2, 4)] == [
        "survived", "caught", "broken", "broken",
    ]  # fmt: skip


def test_the_table_fits_the_tree():
    slips = read_slips(TABLE)
    assert find_problems(slips, ROOT) == [] and len(slips) >= 30


def test_pytest_itself_is_asked(tree):
    """Its exit codes, with the tree's own modules and none of their bytecode."""
    assert run_tests(tree, SLIP.tests) == 0
    with planted(SLIP, tree):
        assert run_tests(tree, SLIP.tests) == 1
