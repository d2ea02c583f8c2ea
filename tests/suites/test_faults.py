"""The table of faults: every test that it names exists, and a row passes only where all of them ran and passed."""

from __future__ import annotations

import ast

import pytest

from tests.faults.__main__ import keep_rows, main
from tests.faults.matrix import FAULTS, Fault
from tests.faults.outcome import Outcome, judge_fault, write_table
from tests.suites.result import Result, read_result, write_result
from tests.suites.table import ROOT

FAULT = Fault("F99", "x", "y", "z", ("a/test_b.py::test_c", "d"))


def test_every_test_that_it_names_exists():
    for fault in FAULTS:
        for test in fault.tests:
            path, _, name = test.partition("::")
            place = ROOT / "tests" / path
            assert place.exists(), test
            if name:
                functions = [
                    each.name
                    for each in ast.parse(place.read_text()).body
                    if isinstance(each, ast.FunctionDef)
                ]
                assert name.partition("[")[0] in functions, test


def test_there_is_one_row_of_each_number():
    assert [fault.number for fault in FAULTS] == [f"F{number}" for number in range(1, 31)]


@pytest.mark.parametrize(
    ("outcomes", "passed", "problems"),
    [
        ([("a/test_b.py::test_c[x]", "passed"), ("d/test_e.py::test_f", "passed")], True, []),
        ([("a/test_b.py::test_c", "passed")], False, ["d: no test ran"]),
        (
            [("a/test_b.py::test_cc", "passed"), ("d/test_e.py::test_f", "passed")],
            False,
            ["a/test_b.py::test_c: no test ran"],
        ),
        (
            [("a/test_b.py::test_c", "skipped"), ("d/test_e.py::test_f", "passed")],
            False,
            ["a/test_b.py::test_c: skipped"],
        ),
    ],
)
def test_a_row_passes_only_where_everything_ran_and_passed(outcomes, passed, problems):
    row = judge_fault(FAULT, [Outcome(test, result, 1.0) for test, result in outcomes])
    assert (row["passed"], row["problems"]) == (passed, problems)


def test_the_largest_figure_counts():
    told = [
        Outcome("a/test_b.py::test_c[1]", "passed", 1.0, {"steps_lost": 3, "seconds_to_recover": 1.5}),
        Outcome("a/test_b.py::test_c[2]", "passed", 1.0, {"steps_lost": 7}),
        Outcome("d/test_e.py::test_f", "passed", 1.0),
    ]
    row = judge_fault(FAULT, told)
    assert row["figures"] == {"steps_lost": 7, "seconds_to_recover": 1.5} and row["seconds"] == 3.0
    assert "| F99 | x | y | z | passed (3) at abc | 1.5 | 7 |  |  |" in write_table([row | {"commit": "abc"}])


def test_a_row_that_was_run_again_takes_its_place_in_the_result(tmp_path):
    rows = [
        judge_fault(FAULT, []) | {"fault": f"F{number}", "commit": "old", "passed": number != 2}
        for number in (1, 2, 10)
    ]
    whole = Result(
        "faults",
        "it ends well",
        "failed",
        "exit code 1",
        "c" * 40,
        False,
        "then",
        60.0,
        "here",
        facts={"faults": rows},
    )
    write_result(tmp_path, whole)
    keep_rows([rows[2] | {"commit": "new"}], tmp_path)
    found = read_result(tmp_path, "faults")
    assert found and (found.result, found.reason) == (
        "failed",
        "F2 failed; run again at their own commits: F10",
    )
    keep_rows([rows[1] | {"commit": "newer", "passed": True}], tmp_path)
    found = read_result(tmp_path, "faults")
    assert found and (found.result, found.reason) == ("passed", "run again at their own commits: F2, F10")
    assert [row["commit"] for row in found.facts["faults"]] == ["old", "newer", "new"]
    assert (found.commit, found.date) == (whole.commit, whole.date)
    assert (tmp_path / "faults.md").read_text().count(" at newer |") == 1


def test_a_fault_that_does_not_exist(capsys):
    assert main(["F99"]) == 2 and "no such fault, there are F1 " in capsys.readouterr().err
