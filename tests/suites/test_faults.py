"""The table of faults: every test that it names exists, and a row passes only where all of them ran and passed."""

from __future__ import annotations

import ast

from tests.faults.matrix import FAULTS, Fault
from tests.faults.outcome import Outcome, judge_fault
from tests.suites.table import ROOT

FAULT = Fault("F99", "x", "y", "z", ("a/test_b.py::test_c", "d"))
OTHER = Outcome("d/test_e.py::test_f", True, 1.0)


def test_there_is_one_row_of_each_number_and_every_test_that_it_names_exists() -> None:
    assert [fault.number for fault in FAULTS] == [f"F{number}" for number in range(1, 31)]
    for test in (test for fault in FAULTS for test in fault.tests):
        path, _, name = test.partition("::")
        place = ROOT / "tests" / path
        assert place.exists(), test
        body = ast.parse(place.read_text()).body if name else []
        functions = [each.name for each in body if isinstance(each, ast.FunctionDef)]
        assert name.partition("[")[0] in functions or not name, test


def test_a_row_passes_only_where_everything_ran_and_passed() -> None:
    for outcomes, problems in (
        ([Outcome("a/test_b.py::test_c[x]", True, 1.0), OTHER], 0),
        ([Outcome("a/test_b.py::test_c", True, 1.0)], 1),
        ([Outcome("a/test_b.py::test_cc", True, 1.0), OTHER], 1),
        ([Outcome("a/test_b.py::test_c", False, 1.0), OTHER], 1),
    ):
        row = judge_fault(FAULT, outcomes)
        assert (row["passed"], len(row["problems"])) == (not problems, problems), outcomes
