"""What a test of this suite asserts, on any matrix."""

from __future__ import annotations

from tests.parity_llm.cases import Case
from tests.parity_llm.comparison import build_row, read_difference, read_resharding, within
from tests.parity_llm.fixtures import Ran, Report
from tests.parity_llm.mutations import Mutation
from tests.parity_llm.resharding import STATE_LOST, Resharding


def check_case(case: Case, trained: Ran, report: Report) -> None:
    """It stays inside its gates, and its ranks ended well."""
    complaint = trained.forks.complaint(case.world_size)
    row = build_row(case, read_difference(trained.folders.out / f"{case.name}.json"))
    report.rows.append(row)
    assert row["passed"] and not complaint, f"{row}\n{complaint}"


def check_resharding(pair: Resharding, continued: Ran, report: Report) -> None:
    """The second half is the reference's, on another mesh than the first."""
    complaint = continued.forks.complaint(pair.continued.world_size)
    row = read_resharding(continued.folders.out / f"{pair.name}.json", pair)
    report.reshardings.append(row)
    assert row["passed"] and not complaint, f"{row}\n{complaint}"


def check_lost_state(continued: Ran, report: Report) -> None:
    """A checkpoint without the optimizer's state is outside the gates."""
    complaint = continued.forks.complaint(STATE_LOST.world_size)
    assert not complaint, complaint
    found = read_resharding(continued.folders.out / f"{STATE_LOST.name}.json", STATE_LOST.pair)
    caught = not found["passed"]
    report.mutations.append(found | {"name": STATE_LOST.name, "case": STATE_LOST.pair.name, "caught": caught})
    assert caught, found


def check_fault(mutation: Mutation, faults: Ran, report: Report) -> None:
    """The fault is outside the gates of its case, and its ranks ended well."""
    case = mutation.case
    complaint = faults.forks.complaint(case.world_size)
    assert not complaint, complaint
    found = read_difference(faults.folders.out / f"{mutation.name}.json")
    caught = not within(found, case)
    report.mutations.append({"name": mutation.name, "case": case.name, "caught": caught, **vars(found)})
    assert caught, f"{mutation.name}: nothing noticed in {case.name}: {found}"
