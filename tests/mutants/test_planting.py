from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from tests.mutants.planting import WarmTests, copy_tree, plant, plant_all
from tests.mutants.slip import Slip, planted
from tests.tiers import tier_of

SLIP = Slip("sum", "a difference", "sums.py", "a + b", "a - b", ("test_sums.py::test_sum",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_sums.py").write_text(
        "from sums import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    )
    return tmp_path


def answers(tree: Path, code: int, without: int = 0):
    """pytest that ends so where a slip is planted, and `without` where none is."""
    clean = (tree / "sums.py").read_text()
    return lambda tree, tests: (without if (tree / "sums.py").read_text() == clean else code, "")


def test_tests_that_cannot_run_are_no_proof_unless_the_slip_was_drawn(tree):
    drawn = replace(SLIP, operator="bound moved")
    seen = [[plant(slip, tree, answers(tree, code))[0] for code in (0, 1, 2, 4)] for slip in (SLIP, drawn)]
    assert seen == [
        ["survived", "caught", "broken", "broken"],
        ["survived", "caught", "caught", "caught"],
    ]


def test_a_test_that_fails_without_the_slip_too_shows_nothing(tree):
    assert plant(SLIP, tree, answers(tree, 1, without=1)) == ("broken", "", "")


def test_the_fast_tier_is_asked_first_and_who_saw_the_slip_is_asked_without_it(tree):
    slow, fast = "tests/trainer/ranks/test_worker.py", "tests/trainer/test_engine.py"
    slip = replace(SLIP, tests=(slow, fast))
    for failing, wanted in (
        (fast, [[fast], [f"{fast}::test_a"]]),
        (slow, [[fast], [slow], [f"{slow}::test_a"]]),
    ):
        asked: list[Sequence[str]] = []

        def run(tree: Path, tests: Sequence[str], asked=asked, failing=failing) -> tuple[int, str]:
            asked.append(tests)
            return (1, f"{failing}::test_a") if list(tests) == [failing] else (0, "")

        assert plant(slip, tree, run) == ("caught", tier_of(PurePath(failing)).name, f"{failing}::test_a")
        assert asked == wanted


def test_as_many_at_a_time_as_there_are_trees_each_in_its_own(tree, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for file in tree.iterdir():
        (other / file.name).write_text(file.read_text())
    together = threading.Barrier(2, timeout=20)
    used: list[Path] = []

    def run(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
        if "a + b" in (tree / "sums.py").read_text():
            return 0, ""
        together.wait()
        used.append(tree)
        return 1, ""

    slips = [replace(SLIP, name=name) for name in "abcd"]
    rows = dict((slip.name, row.outcome) for slip, row in plant_all(slips, [tree, other], run))
    assert rows == dict.fromkeys("abcd", "caught")
    assert used.count(tree) == used.count(other) == 2
    assert "a + b" in (tree / "sums.py").read_text() == (other / "sums.py").read_text()


def test_a_copy_holds_what_git_knows_or_would_take_in(tree):
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    (tree / ".gitignore").write_text("*.log\n")
    (tree / "run.log").write_text("")
    (tree / ".venv").mkdir()
    with copy_tree(tree) as copy:
        names = sorted(path.name for path in copy.iterdir())
        assert names == [".gitignore", ".venv", "sums.py", "test_sums.py"]
        assert (copy / ".venv").is_symlink() and not (copy / "sums.py").is_symlink()
    assert not copy.exists()


def test_pytest_itself_is_asked(tree):
    """Its exit codes, with the tree's own modules and none of their bytecode."""
    with WarmTests(libraries=["pytest", "hypothesis", "not_installed"]) as run:
        assert run(tree, ["test_sums.py"]) == (0, "")
        with planted(SLIP, tree):
            assert run(tree, ["test_sums.py"]) == (1, "test_sums.py::test_sum")
        (tree / "sums.py").write_text("from nowhere import add")
        assert run(tree, ["test_sums.py"]) == (2, "test_sums.py")
        assert run(tree, ["test_sums.py::test_other"])[0] == 4


def test_tests_that_hang_are_ended_and_count_as_failed(tree, monkeypatch):
    (tree / "test_sums.py").write_text(
        "import subprocess\n\n\ndef test_sum():\n    subprocess.run(['sleep', '61'])\n"
    )
    monkeypatch.setattr("tests.mutants.planting.LONGEST_S", -22)
    began = time.monotonic()
    with WarmTests(libraries=["pytest", "hypothesis"]) as run:
        assert run(tree, ["test_sums.py"]) == (1, "test_sums.py::test_sum")
    assert time.monotonic() - began < 30
