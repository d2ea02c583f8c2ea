"""Trains references, cases and planted faults once per session, collects the rows, writes the report.

Both folders of tests use them, each with a `matrix` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Forks
from tests.parity.cases import Case
from tests.parity.comparison import Difference, compare
from tests.parity.matrix import Matrix
from tests.parity.mutations import MUTATIONS
from tests.parity.training import STEPS, Training, train
from tests.parity_report import write_report


@dataclass
class Report:
    """What this run of the suite has found so far."""

    matrix: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """Trainings, all of one world size in one fork, and the references that they have to equal."""

    forks: Forks[Training]
    out: Path
    references: Path

    def difference(self, training: Training) -> tuple[Difference, str]:
        """From its reference; and what the ranks complained of."""
        complaint = self.forks.complaint(training.world_size)
        reference = self.references / f"{training.case.reference().name}.pt"
        return compare(self.out / f"{training.name}.pt", reference), complaint


@pytest.fixture(scope="session")
def report(matrix: Matrix) -> Iterator[Report]:
    found = Report(matrix.name)
    yield found
    write_report(matrix.report, STEPS, vars(found))


@pytest.fixture(scope="session")
def references(matrix: Matrix, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case in one process, whole batch."""
    folder = tmp_path_factory.mktemp("references")
    needed = {case.reference() for case in (*matrix.cases, *(mutation.case for mutation in MUTATIONS))}
    wanted = sorted(needed, key=lambda case: case.name)
    complaint = _forks([as_training(case) for case in wanted], folder).complaint(1)
    assert not complaint, complaint
    return folder


@pytest.fixture(scope="session")
def trained(matrix: Matrix, references: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The matrix."""
    out = tmp_path_factory.mktemp("cases")
    return Trained(_forks([as_training(case) for case in matrix.cases], out), out, references)


@pytest.fixture(scope="session")
def faults(references: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Cases with a planted fault, each taken back before the next."""
    out = tmp_path_factory.mktemp("faults")
    trainings = [Training(mutation.name, mutation.case, mutation.plant) for mutation in MUTATIONS]
    return Trained(_forks(trainings, out), out, references)


def as_training(case: Case) -> Training:
    return Training(case.name, case)


def _forks(trainings: Sequence[Training], out: Path) -> Forks[Training]:
    return Forks(trainings, partial(train, out=out))
