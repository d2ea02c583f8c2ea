"""Every strategy is one process: per-step loss and gradient norm, and every parameter's first gradient.

Losses alone are blind: averaging gradients that should be summed moved the loss by 9e-4 in 8 steps of Adam. Here is the
small matrix; all cases are in tests/nightly/parity.
"""

from __future__ import annotations

import pytest

from tests.parity.matrix import SMALL
from tests.parity.mutations import MUTATIONS
from tests.parity.suite import Fault, Found, Matrix, Report, check_cases, check_fault


@pytest.mark.parametrize("ranks", SMALL.world_sizes)
def test_every_strategy_equals_one_process(
    ranks: int, matrix: Matrix, trained: Found, report: Report
) -> None:
    check_cases([case for case in matrix.cases if case.world_size == ranks], trained, report)


@pytest.mark.parametrize("fault", MUTATIONS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault: Fault, trained: Found, report: Report) -> None:
    check_fault(fault, trained, report)
