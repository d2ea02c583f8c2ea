"""Every composition of axes is one process, on 1 to 16: tests/parity_llm without a choice.

make parity-llm
"""

import pytest

from tests.parity.suite import Found, Report, check_cases
from tests.parity_llm.matrix import FULL
from tests.parity_llm.test_parity_llm import (
    test_a_checkpoint_continues_on_another_mesh,
    test_a_planted_fault_is_caught,
)

__all__ = ["test_a_checkpoint_continues_on_another_mesh", "test_a_planted_fault_is_caught"]


@pytest.mark.parametrize("ranks", FULL.world_sizes)
def test_every_composition_equals_one_process(ranks: int, trained: Found, report: Report) -> None:
    check_cases([case for case in FULL.cases if case.world_size == ranks], trained, report)
