"""The small matrix leaves out nothing that a change could break unseen."""

from __future__ import annotations

from tests.parity.cases import MODELS, STRATEGIES, VARIANTS, WORLD_SIZES
from tests.parity.matrix import FULL, SMALL
from tests.parity.mutations import MUTATIONS


def test_only_compiled_blocks_wait_for_the_night() -> None:
    """tests/trainer/strategies/slow/test_strategies.py has them in CI."""
    nightly = {name for name, variant in VARIANTS.items() if variant.nightly}
    assert nightly == {"compiled"} == VARIANTS.keys() - {case.variant for case in SMALL.cases}


def test_every_strategy_meets_every_model_and_several_variants_and_numbers() -> None:
    shared = [case for case in SMALL.cases if case.world_size > 1 or case.strategy == "single"]
    assert {(case.strategy, case.model) for case in shared} >= {(s, m) for s in STRATEGIES for m in MODELS}
    assert {case.world_size for case in SMALL.cases} == set(WORLD_SIZES)
    assert {fault.case for fault in MUTATIONS} <= set(SMALL.cases) <= set(FULL.cases)
    assert len(SMALL.cases) < len(FULL.cases) / 4 and SMALL.report != FULL.report
