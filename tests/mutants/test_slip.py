from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.slip import Slip, build_key, find_problems, planted

SLIP = Slip("sum", "a difference", "sums.py", "a + b", "a - b", ("test_sums.py::test_sum",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_sums.py").write_text("def test_sum():\n    pass\n")
    return tmp_path


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
    assert find_problems([replace(SLIP, tests=())], tree) == ["sum: no test has to see it"]
    assert find_problems([replace(SLIP, tests=("test_sums.py",))], tree) == []


def test_what_is_no_python_any_more_is_no_slip(tree):
    (problem,) = find_problems([replace(SLIP, replacement="a +")], tree)
    assert problem.startswith("sum: leaves no Python behind, which any test sees: ")


def test_a_slip_is_taken_back(tree):
    before = (tree / "sums.py").read_text()
    with pytest.raises(KeyboardInterrupt), planted(SLIP, tree):
        assert "a - b" in (tree / "sums.py").read_text()
        raise KeyboardInterrupt
    assert (tree / "sums.py").read_text() == before


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("sums.py", True),
        ("tests/room/test_sums.py", True),
        ("tests/room/near.py", True),
        ("tests/far/__init__.py", True),  # imported by what the test imports
        ("tests/room/conftest.py", True),
        ("tests/conftest.py", True),
        ("tests/room/other.py", False),
        ("tests/far/conftest.py", False),
    ],
)
def test_a_result_holds_until_something_that_its_test_stands_on_changes(tree, changed, counts):
    imports = "def test_sum():\n    from tests.room import near\n"
    files = {
        "tests/room/test_sums.py": imports,
        "tests/room/near.py": "import tests.far",
        "tests/far/__init__.py": "",
    }
    names = ("room/conftest.py", "conftest.py", "room/other.py", "far/conftest.py")
    for name, text in {**files, **{f"tests/{name}": "" for name in names}}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    slip = replace(SLIP, tests=("tests/room/test_sums.py::test_sum",))
    before = build_key(slip, tree)
    (tree / changed).write_text((tree / changed).read_text() + "# changed\n")
    assert (build_key(slip, tree) != before) is counts
