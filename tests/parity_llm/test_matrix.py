"""The small matrix leaves out nothing that a change could break unseen."""

from __future__ import annotations

from tests.parity_llm.cases import CASES, LARGE
from tests.parity_llm.matrix import FULL, SMALL, axes_of, family_of
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.resharding import RESHARDINGS, STATE_LOST


def test_the_full_one_has_all_and_the_small_one_every_strategy_axis_and_fault() -> None:
    names = [case.name for case in FULL.cases]
    assert len(names) == len(set(names)) and {case.name for case in (*CASES, *LARGE)} <= set(names)
    assert FULL.reshardings == RESHARDINGS and STATE_LOST.pair in SMALL.reshardings
    assert all(fault.case in SMALL.cases for fault in MUTATIONS)
    met, there = (
        {each for case in matrix.cases for each in (case.strategy, *axes_of(case))}
        for matrix in (SMALL, FULL)
    )
    assert met == there
    assert any(len(axes_of(case)) == 5 and case.world_size == 8 for case in FULL.cases)
    assert max(case.world_size for case in SMALL.cases) == 4
    assert {family_of(case) for case in SMALL.cases} == {"qwen2", "qwen3_moe"}
    assert len(SMALL.cases) < len(FULL.cases) / 2 and SMALL.report != FULL.report
