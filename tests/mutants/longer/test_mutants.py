"""The command that plants slips, on a tree of two files; and the tables against the tree as it is."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, TABLE, main
from tests.mutants.drawing import draw_slips, format_slip, is_drawable, read_sources
from tests.mutants.nearest import find_nearest
from tests.mutants.operators import find_places
from tests.mutants.planting import RunTests, WarmTests, copy_tree, plant
from tests.mutants.slip import Slip, find_problems, planted, read_slips

ROW = (
    '[[slip]]\nname = "{}"\nsays = ""\nfile = "sums.py"\nsearch = "{}"\nreplacement = "{}"\n'
    'tests = ["test_sums.py"]\n'
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


def test_it_goes_on_where_it_was_interrupted(tree: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(tree, stand_in([], stop_at=2))
    assert list(json.loads((tree / "found.json").read_text())["slips"]) == ["sum"]
    call(tree, stand_in(calls := []))
    assert len(calls) == 1


def test_tests_that_fail_without_a_slip_or_cannot_run_show_nothing(tree: Path) -> None:
    """Of a drawn slip, tests that cannot even be imported have seen it."""
    clean = (tree / "sums.py").read_text()

    def answers(code: int, without: int = 0) -> RunTests:
        return lambda tree, tests: (without if (tree / "sums.py").read_text() == clean else code, "")

    drawn = replace(SLIP, operator="bound moved")
    outcomes = [[plant(slip, tree, answers(code))[0] for code in (0, 1, 2)] for slip in (SLIP, drawn)]
    assert outcomes == [["survived", "caught", "broken"], ["survived", "caught", "caught"]]
    assert plant(SLIP, tree, answers(1, without=1)) == ("broken", "", "")


def test_a_table_that_does_not_fit_the_tree_ends_with_2(tree: Path) -> None:
    assert call(tree, stand_in([]), "other") == 2
    wrong = [
        replace(SLIP, search="a"),
        replace(SLIP, replacement=SLIP.search),
        replace(SLIP, replacement="a +"),
        replace(SLIP, tests=("none.py::test_sum",)),
    ]
    assert find_problems([SLIP], tree) == [] and all(find_problems([slip], tree) for slip in wrong)


def test_pytest_itself_is_asked_in_a_copy_and_tests_that_hang_are_ended(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copy_tree(tree) as copy, WarmTests(libraries=["pytest", "not_installed"]) as run:
        assert run(copy, ["test_sums.py"]) == (0, "")
        with planted(SLIP, copy):
            assert run(copy, ["test_sums.py"]) == (1, "test_sums.py::test_sum")
        (copy / "test_sums.py").write_text("def test_sum():\n    import time\n    time.sleep(120)\n")
        monkeypatch.setattr("tests.mutants.planting.LONGEST_S", -12)
        began = time.monotonic()
        assert run(copy, ["test_sums.py"]) == (1, "test_sums.py::test_sum") and time.monotonic() - began < 60


def test_the_nearest_tests_are_the_mirror_the_importers_and_the_room(tmp_path: Path) -> None:
    files = {
        "pack/room/thing.py": "",
        "pack/room/user.py": "from pack.room.thing import a",
        "tests/pack/room/test_thing.py": "",
        "tests/pack/room/test_user.py": "",
        "tests/pack/room/ranks/test_thing.py": "",
        "tests/pack/other/test_far.py": "from pack.room import thing",
        "tests/pack/room/test_other.py": "from pack.room.thing_two import b",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    order = (
        "room/test_thing",
        "other/test_far",
        "room/test_user",
        "room/test_other",
        "room/ranks/test_thing",
    )
    assert find_nearest("pack/room/thing.py", tmp_path) == tuple(f"tests/pack/{name}.py" for name in order)


def test_a_drawn_row_is_the_same_for_a_seed_and_comes_back_out_of_the_table(tmp_path: Path) -> None:
    text = "".join(
        f"def f{i}(a, b):\n    if a < b:\n        return 'it\\'s' if a else b\n" for i in range(30)
    )
    sources = {"trainer/long.py": text, "stratlab/short.py": "def g(a):\n    return a == 3\n"}
    rows = list(draw_slips(sources, 1, 20))
    assert rows[:10] == list(draw_slips(sources, 1, 10)) and rows != list(draw_slips(sources, 2, 20))
    assert all(sources[row.file].count(row.search) == 1 for row in rows)
    (tmp_path / "drawn.toml").write_text("\n".join(map(format_slip, rows)))
    assert read_slips(tmp_path) == rows


@pytest.mark.parametrize(
    ("text", "operator", "made"),
    [
        ("a < b", "comparison turned", {"a > b"}),
        ("0 < a <= 9", "bound moved", {"0 <= a <= 9", "0 < a < 9"}),
        ("a and (b) and c", "and for or", {"a or (b) and c", "a and (b) or c"}),
        ("f(7)", "constant off by one", {"f(8)", "f(6)"}),
        ("(a + b) * 1000", "scale forgotten", {"(a + b)"}),
        ("f(a, (b), c=d)", "arguments swapped", {"f(b, (a), c=d)"}),
        ("a if b else c", "condition negated", {"a if not (b) else c"}),
        ("if a == b:\n    c()", "branch dropped", {"if False:\n    c()"}),
        ("self._config.lr", "default for setting", {"0.001"}),
        ("max(a, b)", "max for min", {"min(a, b)"}),
        ("'ü', a[0]", "first for last", {"'ü', a[-1]"}),
        ("def f(a: Literal[1]) -> Literal[2]: ...", "constant off by one", set()),
        ("if TYPE_CHECKING:\n    a = 1", "constant off by one", set()),
    ],
)
def test_what_an_operator_makes(text: str, operator: str, made: set[str]) -> None:
    data = text.encode()
    places = [place for place in find_places(text) if place.operator == operator]
    assert {(data[: p.start] + p.new.encode() + data[p.end :]).decode() for p in places} == made


def test_the_tables_fit_the_tree_and_no_drawn_row_was_exchanged_by_hand() -> None:
    slips, sources = read_slips(TABLE), read_sources()
    assert find_problems(slips, ROOT) == [] and len(slips) >= 500
    drawn = [slip for slip in slips if slip.operator]
    assert len(drawn) >= 150 and [s.name for s in drawn if not is_drawable(s, sources[s.file])] == []
