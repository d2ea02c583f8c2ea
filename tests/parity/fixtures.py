"""Trains references, cases and planted faults once per session; the nightly folder uses them too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.forks import Forks
from tests.parity.cases import Case
from tests.parity.comparison import compare
from tests.parity.mutations import MUTATIONS
from tests.parity.suite import Difference, Found, Matrix
from tests.parity.training import Training, train


@pytest.fixture(scope="session")
def references(matrix: Matrix, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case in one process, whole batch."""
    folder = tmp_path_factory.mktemp("references")
    wanted = sorted({case.reference() for case in matrix.cases}, key=lambda case: case.name)
    complaint = _forks([Training(case.name, case) for case in wanted], folder).complaint(1)
    assert not complaint, complaint
    return folder


@pytest.fixture(scope="session")
def trained(matrix: Matrix, references: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The matrix, and each fault in its case, taken back before the next: all of one world size in one fork."""
    out = tmp_path_factory.mktemp("trained")
    trainings = [Training(case.name, case) for case in matrix.cases]
    trainings += [Training(fault.name, fault.case, fault.plant) for fault in MUTATIONS]
    forks = _forks(trainings, out)

    def find(case: Case, name: str) -> tuple[Difference, str]:
        complaint = forks.complaint(case.world_size)
        return compare(out / f"{name}.pt", references / f"{case.reference().name}.pt"), complaint

    return find


def _forks(trainings: Sequence[Training], out: Path) -> Forks[Training]:
    return Forks(trainings, partial(train, out=out))
