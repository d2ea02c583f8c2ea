"""Every strategy is one process: per-step loss and gradient norm, and every parameter's first gradient.

Losses alone are blind: averaging gradients that should be summed moved the loss by 9e-4 in 8 steps of Adam. Here is the
small matrix; all cases are in tests/nightly/parity.
"""

from __future__ import annotations

import pytest

from tests.parity.checks import check_fault, check_strategy
from tests.parity.fixtures import Report, Trained
from tests.parity.matrix import SMALL
from tests.parity.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize(("strategy", "world_size"), SMALL.groups())
def test_a_strategy_equals_one_process(
    strategy: str, world_size: int, trained: Trained, report: Report
) -> None:
    check_strategy(SMALL, strategy, world_size, trained, report)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_planted_fault_is_caught(mutation: Mutation, faults: Trained, report: Report) -> None:
    check_fault(mutation, faults, report)
