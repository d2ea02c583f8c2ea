"""What a test of this suite asserts, on any matrix."""

from __future__ import annotations

from tests.parity.comparison import build_row, within
from tests.parity.fixtures import Report, Trained, as_training
from tests.parity.matrix import Matrix
from tests.parity.mutations import Mutation
from tests.parity.training import Training


def check_strategy(matrix: Matrix, strategy: str, world_size: int, trained: Trained, report: Report) -> None:
    """Every case of this strategy and world size stays inside its gates."""
    rows, complaint = [], ""
    for case in matrix.of(strategy, world_size):
        found, complaint = trained.difference(as_training(case))
        rows.append(build_row(case, found))
    report.rows.extend(rows)
    failed = [row for row in rows if not row["passed"]]
    assert not failed, f"{failed}\n{complaint}"
    assert not complaint, complaint


def check_fault(mutation: Mutation, faults: Trained, report: Report) -> None:
    """The fault is outside the gates of its case, and its ranks ended well."""
    case = mutation.case
    found, complaint = faults.difference(Training(mutation.name, case, mutation.plant))
    assert not complaint, complaint
    caught = not within(found, case)
    report.mutations.append({"name": mutation.name, "caught": caught, "case": case.name, **vars(found)})
    assert caught, f"{mutation.name}: nothing noticed in {case.name}: {found}"
