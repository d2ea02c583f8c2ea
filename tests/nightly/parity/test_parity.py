"""Every strategy is one process, in every variant, with every model, on 1, 2 and 4: tests/parity without a choice.

make parity
"""

from __future__ import annotations

import pytest

from tests.parity.checks import check_fault, check_strategy
from tests.parity.fixtures import Report, Trained
from tests.parity.matrix import FULL
from tests.parity.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize(("strategy", "world_size"), FULL.groups())
def test_a_strategy_equals_one_process(
    strategy: str, world_size: int, trained: Trained, report: Report
) -> None:
    check_strategy(FULL, strategy, world_size, trained, report)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_planted_fault_is_caught(mutation: Mutation, faults: Trained, report: Report) -> None:
    check_fault(mutation, faults, report)
