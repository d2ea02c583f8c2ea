"""The full table of cases and reshardings and the small one of every change, run once per session."""

import json
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.covering import choose_cover
from tests.forks import Forks
from tests.parity.suite import DID_NOT_END, Difference, Found, Matrix, within
from tests.parity_llm.cases import CASES, EVERY_CHANGE, FAMILY_CASES, LARGE, STEPS, TEACHER, Case
from tests.parity_llm.models import MODELS, write_models
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.reference import train_plain_models
from tests.parity_llm.resharding import RESHARDINGS, STATE_LOST, Continuing, Resharding, Saving, checkpoint_of
from tests.parity_llm.training import Folders, Training, work_off, write_references
from tests.parity_report import PARITY_LLM, PARITY_LLM_SMALL
from tests.ranks import run_ranks


def axes_of(case: Case) -> set[str]:
    """The axes with more than one rank, and sp."""
    axes = {axis for axis, size in case.degrees.items() if size > 1}
    return axes | ({"sp"} if case.sequence_parallel else set())


def family_of(case: Case) -> str:
    return MODELS[case.model][0]


LIKE_ANOTHER = ("hsdp", "zero1", "zero2", "zeropp")
"""One model is enough: of images, and at night of decoders, they have all."""


def traits_of(case: Case) -> set[Hashable]:
    """Pairs that only it may show: a strategy or an axis with dense models or experts, a setting.

    What a strategy does with packing, teachers and varlen attention is seen in tests/parity or of one strategy; with
    axes each of them counts.
    """
    axes = axes_of(case)
    special = [name for name in ("packed", "varlen", "taught") if getattr(case, name)]
    return {
        (case.strategy, *([] if case.strategy in LIKE_ANOTHER else [family_of(case)])),
        ("micro-batches", case.micro > 0),
        ("routed alike", case.routed_alike, case.strategy == "nd"),
        *((name, axis) for name in special for axis in axes & {"cp", "pp", "tp"}),
        ("lora", case.lora and "tp" in axes),
        *((case.strategy == "nd", name, value) for name, value in case.settings.items()),
        *((axis, family_of(case)) for axis in axes),
    }


def _without_twins(cases: list[Case]) -> tuple[Case, ...]:
    return tuple({case.name: case for case in cases}.values())


_SEEN = _without_twins([*(mutation.case for mutation in MUTATIONS), *EVERY_CHANGE])
"""That a fault is caught in a case says something where the case itself holds; and two of the further families."""
_ALL = _without_twins([*CASES, *_SEEN])
COMPOSED = tuple(
    case for case in CASES if case.name in ("nd pp2.cp2 tied packed", "nd cp2.dp2.ep4 moe packed")
)
"""On 4 ranks, beside those with faults: what two axes make of each other. All compositions, to 16 ranks, at night."""
_TWO = [case for case in _ALL if case.world_size <= 2 or case in (*_SEEN, *COMPOSED)]
_SMALL = choose_cover(_TWO, traits_of, lambda case: case.world_size, _without_twins([*_SEEN, *COMPOSED]))
FULL = Matrix("full", _without_twins([*_ALL, *FAMILY_CASES, *LARGE]), PARITY_LLM, STEPS, RESHARDINGS)
SMALL = Matrix("small", tuple(_SMALL), PARITY_LLM_SMALL, STEPS, (STATE_LOST.pair,))


def read_difference(path: Path) -> Difference:
    """Of a case; one that wrote nothing has failed."""
    if not path.exists():
        return DID_NOT_END
    found = json.loads(path.read_text())
    gradients = found["gradients"]
    worst = max(gradients, key=lambda name: gradients[name], default="")
    complaints = [f"no gradient: {name}" for name in found["without_gradient"]]
    complaints += [f"wrongly loaded: {name}" for name in found["wrongly_loaded"]]
    numbers = found["loss"], found["grad_norm"], gradients.get(worst)
    return Difference(*numbers, worst, found["moved_pct"], tuple(complaints))


def read_resharding(path: Path, pair: Resharding) -> dict[str, Any]:
    """One line of the report on what the second mesh found; nothing written = failed."""
    numbers = dict.fromkeys(("loss", "grad_norm"), float("inf"))
    found = json.loads(path.read_text()) if path.exists() else numbers
    gates = pair.continued.gates
    return {
        "model": pair.saved.model,
        "saved": pair.saved.mesh,
        "continued": pair.continued.mesh,
        "variant": pair.saved.variant,
        **found,
        "gates": {"loss": gates.loss, "grad_norm": gates.grad_norm},
        "passed": within(Difference(**found, gradient=None), gates),
    }


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
