"""The small matrix leaves out nothing that a change could break unseen."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import combinations

from tests.parity_llm.cases import CASES, LARGE, Case
from tests.parity_llm.matrix import FULL, SMALL, axes_of, family_of
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.resharding import RESHARDINGS, STATE_LOST


def pairs_of_axes(cases: tuple[Case, ...]) -> set[Hashable]:
    return {pair for case in cases for pair in combinations(sorted(axes_of(case)), 2)}


def test_all_cases_are_in_the_full_one() -> None:
    names = [case.name for case in FULL.cases]
    assert len(names) == len(set(names))
    assert {case.name for case in (*CASES, *LARGE)} <= set(names)
    assert FULL.reshardings == RESHARDINGS


def test_every_two_axes_that_any_case_composes_are_composed() -> None:
    assert pairs_of_axes(SMALL.cases) == pairs_of_axes(FULL.cases)


def test_dense_models_and_experts_meet_every_strategy_and_axis() -> None:
    def met(cases: tuple[Case, ...]) -> set[Hashable]:
        return {(family_of(case), each) for case in cases for each in (case.strategy, *axes_of(case))}

    assert met(SMALL.cases) == met(FULL.cases)


def test_a_case_of_five_dimensions_and_every_setting_is_there() -> None:
    def settings(cases: tuple[Case, ...]) -> set[Hashable]:
        return {(case.strategy, *each) for case in cases for each in case.settings.items()}

    assert any(len(axes_of(case)) == 5 and case.world_size == 8 for case in SMALL.cases)
    assert settings(SMALL.cases) == settings(FULL.cases)


def test_a_checkpoint_is_resharded_for_dense_models_and_for_experts() -> None:
    assert {family_of(pair.saved) for pair in SMALL.reshardings} == {"qwen2", "qwen3_moe"}
    assert STATE_LOST.pair in SMALL.reshardings


def test_every_fault_is_planted_in_a_case_that_is_seen_to_hold_without_it() -> None:
    assert all(mutation.case in SMALL.cases for mutation in MUTATIONS)


def test_it_is_small_and_has_its_own_report() -> None:
    assert len(SMALL.cases) < len(FULL.cases) / 2
    assert SMALL.report != FULL.report
