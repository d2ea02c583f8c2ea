"""Every composition of axes is one process, on 1 to 16; planted faults and the small matrix: tests/parity_llm.

make parity-llm
"""

from __future__ import annotations

import pytest

from tests.nightly.parity_llm.conftest import MATRIX
from tests.parity_llm.cases import Case
from tests.parity_llm.checks import check_case, check_resharding
from tests.parity_llm.fixtures import Ran, Report
from tests.parity_llm.resharding import Resharding


@pytest.mark.parametrize("case", MATRIX.cases, ids=lambda case: case.name)
def test_a_composition_equals_one_process(case: Case, trained: Ran, report: Report) -> None:
    check_case(case, trained, report)


@pytest.mark.parametrize("pair", MATRIX.reshardings, ids=lambda pair: pair.name)
def test_a_checkpoint_continues_on_another_mesh(pair: Resharding, continued: Ran, report: Report) -> None:
    check_resharding(pair, continued, report)
