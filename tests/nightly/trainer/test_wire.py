"""Bytes and operations of a step on the runs that are not among the chosen ones of tests/trainer/ranks/test_wire.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.trainer.wire_runs import CHOSEN, EVERY, Found, Run, check, measure_together

OTHERS = sorted(EVERY - {*CHOSEN}, key=lambda run: run.file)


@pytest.fixture(scope="module")
def read_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], Found]:
    return measure_together(OTHERS, tmp_path_factory.mktemp("wire"))


@pytest.mark.parametrize("run", OTHERS, ids=lambda run: run.file)
def test_a_step_sends_what_the_formula_says(run: Run, read_run: Callable[[Run], Found]) -> None:
    check(run, read_run(run))
