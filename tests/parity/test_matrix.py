"""The small matrix leaves out nothing that a change could break unseen."""

from __future__ import annotations

from tests.parity.cases import MODELS, STRATEGIES, VARIANTS, WORLD_SIZES, Case
from tests.parity.matrix import FULL, SMALL
from tests.parity.mutations import MUTATIONS

EACH_CHANGE = tuple(case for case in FULL.cases if not VARIANTS[case.variant].nightly)


def test_only_compiled_blocks_wait_for_the_night() -> None:
    """tests/trainer/strategies/ranks/test_compile.py has them on every change."""
    assert [name for name, variant in VARIANTS.items() if variant.nightly] == ["compiled"]


def test_every_strategy_meets_every_variant_and_model_where_ranks_share_the_work() -> None:
    def met(cases: tuple[Case, ...]) -> set[tuple[str, str]]:
        shared = [case for case in cases if case.world_size > 1 or case.strategy == "single"]
        return {(c.strategy, other) for c in shared for other in (c.variant, c.model)}

    assert met(SMALL.cases) == met(EACH_CHANGE)
    assert met(SMALL.cases) >= {(strategy, model) for strategy in STRATEGIES for model in MODELS}


def test_every_world_size_has_every_strategy_and_variant_that_can_be_there() -> None:
    def there(cases: tuple[Case, ...]) -> set[tuple[int, str]]:
        return {(case.world_size, other) for case in cases for other in (case.strategy, case.variant)}

    assert there(SMALL.cases) == there(EACH_CHANGE)
    assert {size for size, _ in there(SMALL.cases)} == set(WORLD_SIZES)
    assert {other for _, other in there(SMALL.cases)} == {
        *STRATEGIES,
        *(name for name, variant in VARIANTS.items() if not variant.nightly),
    }


def test_every_fault_is_planted_in_a_case_that_is_seen_to_hold_without_it() -> None:
    assert {mutation.case for mutation in MUTATIONS} <= set(SMALL.cases) <= set(FULL.cases)


def test_it_is_small_and_has_its_own_report() -> None:
    assert len(SMALL.cases) < len(FULL.cases) / 4
    assert SMALL.report != FULL.report
