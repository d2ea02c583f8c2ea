"""Every strategy is one process: per-step loss and gradient norm, and every parameter's first gradient.

Losses alone are blind: averaging gradients that should be summed moved the loss by 9e-4 in 8 steps of Adam.

    make parity
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.cases import STRATEGIES, WORLD_SIZES, cases_of, processes_per_node
from tests.parity.comparison import build_row, compare, within
from tests.parity.conftest import Report, path_of
from tests.parity.mutations import MUTATIONS, Mutation
from tests.parity.training import train_cases
from tests.ranks import run_ranks

GROUPS = [(s, n) for s in STRATEGIES for n in WORLD_SIZES if cases_of(s, n)]


@pytest.mark.parametrize(("strategy", "world_size"), GROUPS)
def test_a_strategy_equals_one_process(
    strategy: str, world_size: int, reference: Path, tmp_path: Path, report: Report
) -> None:
    cases = cases_of(strategy, world_size)
    local_size = processes_per_node(strategy, world_size)
    run_ranks(
        lambda: train_cases(cases, tmp_path),
        world_size,
        env={"LOCAL_WORLD_SIZE": str(local_size)},
        timeout_s=300,
    )
    rows = [
        build_row(case, compare(path_of(tmp_path, case), path_of(reference, case.reference())))
        for case in cases
    ]
    report.rows.extend(rows)
    assert [row for row in rows if not row["passed"]] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_planted_fault_is_caught(
    mutation: Mutation, reference: Path, tmp_path: Path, report: Report
) -> None:
    case = mutation.case
    run_ranks(lambda: train_cases([case], tmp_path, mutation.plant), case.world_size)
    found = compare(path_of(tmp_path, case), path_of(reference, case.reference()))
    caught = not within(found, case)
    report.mutations.append({"name": mutation.name, "caught": caught, "case": case.name, **vars(found)})
    assert caught, f"{mutation.name}: nothing noticed in {case.name}: {found}"
