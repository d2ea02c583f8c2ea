"""Writes checkpoints and references once, runs the matrix and the planted faults; two folders of tests use them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.forks import Forks
from tests.parity.suite import Difference, Found, Matrix
from tests.parity_llm.cases import TEACHER, Case
from tests.parity_llm.comparison import read_difference
from tests.parity_llm.models import write_models
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.reference import train_plain_models
from tests.parity_llm.resharding import STATE_LOST, Continuing, Saving, checkpoint_of
from tests.parity_llm.training import Folders, Training, work_off, write_references
from tests.ranks import run_ranks


@pytest.fixture(scope="session")
def folders(matrix: Matrix, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Checkpoints and references; `out` is empty."""
    made = Folders(*(tmp_path_factory.mktemp(name) for name in ("checkpoints", "references", "out")))
    continued = [pair.continued for pair in matrix.reshardings]
    run_ranks(partial(write_inputs, [*matrix.cases, *continued], made), 1, timeout_s=600)
    return made


def write_inputs(cases: Sequence[Case], folders: Folders) -> None:
    """Checkpoint folders of all models, and the reference of every case."""
    teachers = {TEACHER for case in cases if case.taught}
    write_models(folders.checkpoints, sorted({case.model for case in cases} | teachers))
    plain = {(case.model, case.packed, case.taught) for case in cases}
    train_plain_models(sorted(plain), folders.checkpoints, folders.references)
    own = {}
    for case in cases:
        if numerics := {n: v for n, v in case.settings.items() if n in ("precision", "lora_rank")}:
            like = {"packed": case.packed, "taught": case.taught, "settings": numerics}
            own[case.reference] = Case(case.model, strategy="single", world=1, **like)
    write_references(tuple(own.values()), folders)


@pytest.fixture(scope="session")
def forks(matrix: Matrix, folders: Folders) -> Forks[Any]:
    """The cases, the checkpoints that others continue from, and each fault in its case, taken back before the next."""
    savings = {pair.saved.name: Saving(pair.saved) for pair in matrix.reshardings}
    trainings = [Training(case.name, case) for case in matrix.cases]
    trainings += [Training(fault.name, fault.case, fault.plant, steps=2) for fault in MUTATIONS]
    return Forks([*savings.values(), *trainings], partial(work_off, folders=folders))


@pytest.fixture(scope="session")
def trained(forks: Forks[Any], folders: Folders) -> Found:
    def find(case: Case, name: str) -> tuple[Difference, str]:
        complaint = forks.complaint(case.world_size)  # they have run when this returns
        return read_difference(folders.out / f"{name}.json"), complaint

    return find


@pytest.fixture(scope="session")
def continued(matrix: Matrix, forks: Forks[Any], folders: Folders) -> Forks[Any]:
    """The changes of the mesh, one of them once more with a fault."""
    for pair in matrix.reshardings:
        complaint = forks.complaint(pair.saved.world_size)
        assert checkpoint_of(folders, pair.saved).exists(), complaint
    works = [Continuing(pair.name, pair) for pair in matrix.reshardings]
    return Forks([*works, STATE_LOST], partial(work_off, folders=folders))
