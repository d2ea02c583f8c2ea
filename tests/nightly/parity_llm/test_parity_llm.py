"""Every composition of axes is one process, on 1 to 16: tests/parity_llm without a choice.

make parity-llm
"""

from __future__ import annotations

import pytest

from tests.parity_llm.cases import Case
from tests.parity_llm.checks import check_case, check_fault, check_lost_state, check_resharding
from tests.parity_llm.fixtures import Ran, Report
from tests.parity_llm.matrix import FULL
from tests.parity_llm.mutations import MUTATIONS, Mutation
from tests.parity_llm.resharding import Resharding


@pytest.mark.parametrize("case", FULL.cases, ids=lambda case: case.name)
def test_a_composition_equals_one_process(case: Case, trained: Ran, report: Report) -> None:
    check_case(case, trained, report)


@pytest.mark.parametrize("pair", FULL.reshardings, ids=lambda pair: pair.name)
def test_a_checkpoint_continues_on_another_mesh(pair: Resharding, continued: Ran, report: Report) -> None:
    check_resharding(pair, continued, report)


def test_a_lost_optimizer_state_is_caught(continued: Ran, report: Report) -> None:
    check_lost_state(continued, report)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_planted_fault_is_caught(mutation: Mutation, faults: Ran, report: Report) -> None:
    check_fault(mutation, faults, report)
