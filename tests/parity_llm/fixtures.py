"""Writes checkpoints and references once, runs the matrix and the planted faults, collects the rows, writes the report.

Both folders of tests use them, each with a `matrix` of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.forks import Forks
from tests.parity_llm.cases import STEPS, TEACHER, Case
from tests.parity_llm.matrix import Matrix
from tests.parity_llm.models import write_models
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.reference import train_plain_models
from tests.parity_llm.resharding import STATE_LOST, Continuing, Saving, checkpoint_of
from tests.parity_llm.training import Folders, Training, work_off, write_references
from tests.parity_report import write_report
from tests.ranks import run_ranks


@dataclass
class Report:
    """What this run of the suite has found so far."""

    matrix: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    reshardings: list[dict[str, Any]] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Ran:
    """Works, all of one world size in one fork, and the folder of what they found."""

    forks: Forks[Any]
    folders: Folders


@pytest.fixture(scope="session")
def report(matrix: Matrix) -> Iterator[Report]:
    found = Report(matrix.name)
    yield found
    write_report(matrix.report, STEPS, vars(found))


@pytest.fixture(scope="session")
def folders(matrix: Matrix, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Checkpoints and references; `out` is empty."""
    made = Folders(*(tmp_path_factory.mktemp(name) for name in ("checkpoints", "references", "out")))
    continued = [pair.continued for pair in matrix.reshardings]
    faulty = [mutation.case for mutation in MUTATIONS]
    run_ranks(partial(write_inputs, [*matrix.cases, *continued, *faulty], made), 1, timeout_s=600)
    return made


def write_inputs(cases: Sequence[Case], folders: Folders) -> None:
    """Checkpoint folders of all models, and the reference of every case."""
    teachers = {TEACHER for case in cases if case.taught}
    write_models(folders.checkpoints, sorted({case.model for case in cases} | teachers))
    plain = {(case.model, case.packed, case.taught) for case in cases}
    train_plain_models(sorted(plain), folders.checkpoints, folders.references)
    own = [
        Case(
            case.model,
            strategy="single",
            world=1,
            packed=case.packed,
            taught=case.taught,
            settings=numerics,
        )
        for case in cases
        if (numerics := {n: v for n, v in case.settings.items() if n in ("precision", "lora_rank")})
    ]
    write_references(tuple({case.reference: case for case in own}.values()), folders)


@pytest.fixture(scope="session")
def trained(matrix: Matrix, folders: Folders) -> Ran:
    """The cases, and the checkpoints that others continue from."""
    savings = {pair.saved.name: Saving(pair.saved) for pair in matrix.reshardings}
    trainings = [Training(case.name, case) for case in matrix.cases]
    return _run([*savings.values(), *trainings], folders)


@pytest.fixture(scope="session")
def continued(matrix: Matrix, trained: Ran) -> Ran:
    """The changes of the mesh, one of them once more with a fault."""
    for pair in matrix.reshardings:
        complaint = trained.forks.complaint(pair.saved.world_size)
        assert checkpoint_of(trained.folders, pair.saved).exists(), complaint
    works = [Continuing(pair.name, pair) for pair in matrix.reshardings]
    return _run([*works, STATE_LOST], trained.folders)


@pytest.fixture(scope="session")
def faults(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Cases with a planted fault, each taken back before the next."""
    apart = dataclasses.replace(folders, out=tmp_path_factory.mktemp("faults"))
    return _run([Training(mutation.name, mutation.case, mutation.plant) for mutation in MUTATIONS], apart)


def _run(works: Sequence[Any], folders: Folders) -> Ran:
    return Ran(Forks(works, partial(work_off, folders=folders)), folders)
