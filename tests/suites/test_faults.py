"""The table of faults: every test that it names exists, and a row passes only where all of them ran and passed."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.faults.__main__ import main
from tests.faults.matrix import FAULTS, Fault
from tests.faults.outcome import Outcome, judge_fault, read_outcomes, write_table
from tests.suites.table import ROOT

FAULT = Fault("F99", "x", "y", "z", ("a/test_b.py::test_c", "d"))
OTHER = Outcome("d/test_e.py::test_f", True, 1.0)
JUNIT = """<testsuites><testsuite><testcase classname="tests.a.test_b" name="test_c[1]" time="1.5"><properties>
<property name="steps_lost" value="3" /></properties></testcase>
<testcase classname="tests.a.test_b" name="test_d" time="0"><skipped /></testcase></testsuite></testsuites>"""


def test_there_is_one_row_of_each_number_and_every_test_that_it_names_exists() -> None:
    assert [fault.number for fault in FAULTS] == [f"F{number}" for number in range(1, 31)]
    for test in (test for fault in FAULTS for test in fault.tests):
        path, _, name = test.partition("::")
        place = ROOT / "tests" / path
        assert place.exists(), test
        body = ast.parse(place.read_text()).body if name else []
        functions = [each.name for each in body if isinstance(each, ast.FunctionDef)]
        assert name.partition("[")[0] in functions or not name, test


def test_outcomes_are_read_of_pytest_s_own_file(tmp_path: Path) -> None:
    assert read_outcomes(tmp_path / "junit.xml") == []
    (tmp_path / "junit.xml").write_text(JUNIT)
    ended = Outcome("a/test_b.py::test_c[1]", True, 1.5, {"steps_lost": 3.0})
    assert read_outcomes(tmp_path / "junit.xml") == [ended, Outcome("a/test_b.py::test_d", False, 0.0)]


def test_a_row_passes_only_where_everything_ran_and_passed() -> None:
    for outcomes, problems in (
        ([Outcome("a/test_b.py::test_c[x]", True, 1.0), OTHER], 0),
        ([Outcome("a/test_b.py::test_c", True, 1.0)], 1),
        ([Outcome("a/test_b.py::test_cc", True, 1.0), OTHER], 1),
        ([Outcome("a/test_b.py::test_c", False, 1.0), OTHER], 1),
    ):
        row = judge_fault(FAULT, outcomes)
        assert (row["passed"], len(row["problems"])) == (not problems, problems), outcomes


def test_the_largest_figure_counts() -> None:
    told = [
        Outcome("a/test_b.py::test_c[1]", True, 1.0, {"steps_lost": 3, "seconds_to_recover": 1.5}),
        Outcome("a/test_b.py::test_c[2]", True, 1.0, {"steps_lost": 7}),
        OTHER,
    ]
    row = judge_fault(FAULT, told)
    assert row["figures"] == {"steps_lost": 7, "seconds_to_recover": 1.5} and row["seconds"] == 3.0
    assert "| F99 | x | y | z | passed (3) at abc | 1.5 | 7 |  |  |" in write_table([row | {"commit": "abc"}])


def test_a_fault_that_does_not_exist() -> None:
    assert main(["F99"]) == 2
