"""Every strategy is one process: per-step loss and gradient norm, and every parameter's first gradient."""

import pytest

from tests.parity.cases import MODELS, STRATEGIES, VARIANTS, WORLD_SIZES
from tests.parity.matrix import FULL, SMALL
from tests.parity.mutations import MUTATIONS
from tests.parity.suite import Fault, Found, Report, check_cases, check_fault


def test_only_compiled_blocks_wait_for_the_night() -> None:
    nightly = {name for name, variant in VARIANTS.items() if variant.nightly}
    assert nightly == {"compiled"} == VARIANTS.keys() - {case.variant for case in SMALL.cases}


def test_every_strategy_meets_every_model_and_several_variants_and_numbers() -> None:
    shared = [case for case in SMALL.cases if case.world_size > 1 or case.strategy == "single"]
    assert {(case.strategy, case.model) for case in shared} >= {(s, m) for s in STRATEGIES for m in MODELS}
    assert {case.world_size for case in SMALL.cases} == set(WORLD_SIZES)
    assert {fault.case for fault in MUTATIONS} <= set(SMALL.cases) <= set(FULL.cases)
    assert len(SMALL.cases) < len(FULL.cases) / 4 and SMALL.report != FULL.report


@pytest.mark.parametrize("ranks", SMALL.world_sizes)
def test_every_strategy_equals_one_process(ranks, matrix, trained, report):
    check_cases([case for case in matrix.cases if case.world_size == ranks], trained, report)


@pytest.mark.parametrize("fault", MUTATIONS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault: Fault, trained: Found, report: Report) -> None:
    check_fault(fault, trained, report)
