"""Every composition of axes is one process: losses and norms of several AdamW steps, every first-step gradient.

The reference is the plain Hugging Face model, whole batch, one document per row (tests/parity_llm/reference.py).
With bf16 and with adapters it is the strategy single, which equals the plain model in fp32. Here is the small matrix,
which leaves out nothing that a change could break unseen; all cases are in tests/nightly/parity_llm.
"""

from typing import Any

import pytest

from stratlab_spec.models.decoder import FAMILIES
from tests.forks import Forks
from tests.parity.suite import Fault, Found, Matrix, Report, check_cases, check_fault
from tests.parity_llm.cases import CASES, LARGE
from tests.parity_llm.matrix import FULL, SMALL, axes_of, family_of, read_resharding
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.resharding import RESHARDINGS, STATE_LOST
from tests.parity_llm.training import Folders


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
    assert {family_of(case) for case in SMALL.cases} == {
        "qwen2",
        "qwen3_moe",
        "llama",
        "gemma2",
        "gemma3_text",
    }
    assert {family_of(case) for case in FULL.cases} == {*FAMILIES}
    assert len(SMALL.cases) < len(FULL.cases) / 2 and SMALL.report != FULL.report


@pytest.mark.parametrize("ranks", SMALL.world_sizes)
def test_every_composition_equals_one_process(
    ranks: int, matrix: Matrix, trained: Found, report: Report
) -> None:
    check_cases([case for case in matrix.cases if case.world_size == ranks], trained, report)


def test_a_checkpoint_continues_on_another_mesh(
    matrix: Matrix, folders: Folders, continued: Forks[Any], report: Report
) -> None:
    """The second half is the reference's; without the optimizer's state it is outside the gates."""
    for pair in matrix.reshardings:
        complaint = continued.complaint(pair.continued.world_size)
        row = read_resharding(folders.out / f"{pair.name}.json", pair)
        report.reshardings.append(row)
        assert row["passed"] and not complaint, f"{row}\n{complaint}"
    lost = read_resharding(folders.out / f"{STATE_LOST.name}.json", STATE_LOST.pair)
    fault = {"name": STATE_LOST.name, "case": STATE_LOST.pair.name, "caught": not lost["passed"]}
    report.mutations.append(lost | fault)
    assert not lost["passed"]


@pytest.mark.parametrize("fault", MUTATIONS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault: Fault, trained: Found, report: Report) -> None:
    check_fault(fault, trained, report)
