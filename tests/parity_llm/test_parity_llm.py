"""Every composition of axes is one process: losses and norms of several AdamW steps, every first-step gradient.

The reference is the plain Hugging Face model, whole batch, one document per row (tests/parity_llm/reference.py).
With bf16 and with adapters it is the strategy single, which equals the plain model in fp32.

    make parity-llm                                   # up to 8 processes
    python -m pytest tests/parity_llm -m slow         # 16 processes
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest

from tests.parity_llm.cases import CASES, LARGE, Case, grouped
from tests.parity_llm.comparison import build_row, read_difference, read_resharding, within
from tests.parity_llm.conftest import Report
from tests.parity_llm.mutations import MUTATIONS, Mutation
from tests.parity_llm.resharding import (
    RESHARDINGS,
    continue_cases,
    continuing_groups,
    optimizer_state_lost,
    save_halves,
    saving_groups,
)
from tests.parity_llm.training import Folders, train_cases
from tests.ranks import fork_ranks, run_ranks

TOGETHER = 6
"""Cases in one fork of ranks."""


def check(cases: tuple[Case, ...], folders: Folders, report: Report) -> None:
    ranks = fork_ranks(lambda: train_cases(cases, folders), cases[0].world_size, timeout_s=420)
    rows = [build_row(case, read_difference(folders.out, case)) for case in cases]
    report.rows.extend(rows)
    failed = [row for row in rows if not row["passed"]]
    output = "\n".join(
        f"rank {r.rank} ended with {r.exit_code}\n{r.output[-2500:]}" for r in ranks if r.exit_code
    )
    assert not failed and not output, f"{failed}\n{output}"


@pytest.mark.parametrize(
    "cases", grouped(CASES, TOGETHER), ids=lambda cases: f"{cases[0].world_size} {cases[0].name}"
)
def test_compositions_equal_one_process(cases: tuple[Case, ...], folders: Folders, report: Report) -> None:
    check(cases, folders, report)


@pytest.mark.slow
@pytest.mark.parametrize("cases", grouped(LARGE, 2), ids=lambda cases: cases[0].name)
def test_large_compositions_equal_one_process(
    cases: tuple[Case, ...], folders: Folders, report: Report
) -> None:
    check(cases, folders, report)


@pytest.fixture(scope="session")
def saved(folders: Folders) -> Folders:
    """Checkpoints of half of the steps, on every mesh that saves."""
    for cases in saving_groups():
        run_ranks(partial(save_halves, cases, folders), cases[0].world_size, timeout_s=300)
    return folders


def test_checkpoints_continue_on_another_mesh(saved: Folders, report: Report) -> None:
    output = []
    for pairs in continuing_groups():
        ranks = fork_ranks(
            partial(continue_cases, pairs, saved), pairs[0].continued.world_size, timeout_s=300
        )
        output += [
            f"rank {r.rank} ended with {r.exit_code}\n{r.output[-2500:]}" for r in ranks if r.exit_code
        ]
    rows = [read_resharding(saved.out, pair) for pair in RESHARDINGS]
    report.reshardings.extend(rows)
    failed = [row for row in rows if not row["passed"]]
    assert not failed and not output, f"{failed}\n" + "\n".join(output)


def test_a_lost_optimizer_state_is_caught(saved: Folders, report: Report, tmp_path: Path) -> None:
    pair = next(pair for pair in RESHARDINGS if pair.continued.world_size == 2)
    apart = dataclasses.replace(saved, out=tmp_path)
    (tmp_path / f"{pair.saved.name} saved").symlink_to(saved.out / f"{pair.saved.name} saved")
    run_ranks(lambda: continue_cases((pair,), apart, optimizer_state_lost), 2)
    found = read_resharding(tmp_path, pair)
    name = "optimizer state lost at a change of the mesh"
    report.mutations.append(found | {"name": name, "case": pair.name, "caught": not found["passed"]})
    assert not found["passed"], found


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_planted_fault_is_caught(
    mutation: Mutation, folders: Folders, report: Report, tmp_path: Path
) -> None:
    case = mutation.case
    apart = dataclasses.replace(folders, out=tmp_path)
    run_ranks(lambda: train_cases((case,), apart, mutation.plant), case.world_size)
    found = read_difference(tmp_path, case)
    caught = not within(found, case)
    report.mutations.append({"name": mutation.name, "case": case.name, "caught": caught, **vars(found)})
    assert caught, f"{mutation.name}: nothing noticed in {case.name}: {found}"
