"""The command that plants slips, on a tree of two files; and the tables against the tree as it is."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, TABLE, main
from tests.mutants.drawing import is_drawable, read_sources
from tests.mutants.planting import RunTests, WarmTests, copy_tree
from tests.mutants.slip import Slip, find_problems, planted, read_slips

ROW = (
    '[[slip]]\nname = "{}"\nsays = ""\nfile = "sums.py"\nsearch = "{}"\nreplacement = "{}"\n'
    'tests = ["test_sums.py::test_sum"]\n'
)
SLIP = Slip("sum", "a difference", "sums.py", "a + b", "a - b", ("test_sums.py::test_sum",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project whose test sees the first slip of its table and not the second."""
    root = tmp_path / "project"
    (root / "slips").mkdir(parents=True)
    (root / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef idle():\n    return 0\n")
    (root / "test_sums.py").write_text(
        "from sums import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    )
    (root / "slips" / "a.toml").write_text(ROW.format("sum", "a + b", "a - b"))
    (root / "slips" / "b.toml").write_text(ROW.format("unseen", "return 0", "return 1"))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def call(tree: Path, run: RunTests, *arguments: str) -> int:
    return main(["--workers", "1", *arguments], tree, tree / "slips", tree / "found.json", run)


def stand_in(calls: list[Sequence[str]], stop_at: int = 0) -> RunTests:
    """pytest as far as it matters here: imports the code of the tree and looks at its sum."""

    def run(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
        if stop_at and len(calls) == stop_at:
            raise KeyboardInterrupt
        calls.append(tests)
        scope: dict = {}
        exec((tree / "sums.py").read_text(), scope)
        return (0, "") if scope["add"](1, 2) == 3 else (1, "test_sums.py::test_sum")

    return run


def test_a_survivor_ends_with_1_and_what_was_caught_is_not_tried_again(tree: Path) -> None:
    calls: list[Sequence[str]] = []
    run = stand_in(calls)
    assert call(tree, run) == 1
    found = json.loads((tree / "found.json").read_text())
    assert {name: row["outcome"] for name, row in found["slips"].items()} == {
        "sum": "caught",
        "unseen": "survived",
    }
    assert found["count"]["planted"] == 2 and found["count"]["caught_by_fast"] == 1
    assert len(calls) == 3  # one each, and what saw the first without it
    assert call(tree, run) == 1 and len(calls) == 4  # only the survivor
    assert call(tree, run, "sum", "--again") == 0 and len(calls) == 6
    (tree / "test_sums.py").write_text((tree / "test_sums.py").read_text() + "\n")
    assert call(tree, run, "sum") == 0 and len(calls) == 8  # its test has changed
    assert (tree / "sums.py").read_text().count("a + b") == 1
    with (tree / "slips" / "b.toml").open("a") as table:
        table.write('equivalent = "no caller"\n')
    assert call(tree, run) == 0


def test_pytest_itself_is_asked_in_a_copy_and_tests_that_hang_are_ended(tree, monkeypatch):
    with copy_tree(tree) as copy, WarmTests(libraries=["pytest", "not_installed"]) as run:
        assert run(copy, ["test_sums.py"]) == (0, "")
        with planted(SLIP, copy):
            assert run(copy, ["test_sums.py"]) == (1, "test_sums.py::test_sum")
        (copy / "test_sums.py").write_text("def test_sum():\n    import time\n    time.sleep(120)\n")
        monkeypatch.setattr("tests.mutants.planting.LONGEST_S", -12)
        began = time.monotonic()
        assert run(copy, ["test_sums.py"]) == (1, "test_sums.py::test_sum") and time.monotonic() - began < 60


def test_the_tables_fit_the_tree_and_no_drawn_row_was_exchanged_by_hand() -> None:
    slips, sources = read_slips(TABLE), read_sources()
    assert find_problems(slips, ROOT) == [] and len(slips) >= 500
    drawn = [slip for slip in slips if slip.operator]
    assert len(drawn) >= 150 and [s.name for s in drawn if not is_drawable(s, sources[s.file])] == []
