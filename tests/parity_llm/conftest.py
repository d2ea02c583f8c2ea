"""Writes checkpoints and references once, collects the rows, writes reports/parity-llm.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.parity_llm.cases import CASES, LARGE, STEPS, Case
from tests.parity_llm.models import write_models
from tests.parity_llm.reference import train_plain_models
from tests.parity_llm.training import Folders, write_references
from tests.parity_report import PARITY_LLM, write_report
from tests.ranks import run_ranks


@dataclass
class Report:
    """What this run of the suite has found so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    reshardings: list[dict[str, Any]] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    found = Report()
    yield found
    write_report(PARITY_LLM, STEPS, vars(found))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Checkpoints and references; the cases add what they find."""
    made = Folders(*(tmp_path_factory.mktemp(name) for name in ("checkpoints", "references", "out")))
    write_inputs((*CASES, *LARGE), made)
    return made


def write_inputs(cases: tuple[Case, ...], folders: Folders) -> None:
    """Checkpoint folders of all models, and the reference of every case, each in a process of its own."""
    run_ranks(lambda: write_models(folders.checkpoints), 1)
    plain = {(case.model, case.packed) for case in cases}
    run_ranks(
        lambda: train_plain_models(sorted(plain), folders.checkpoints, folders.references), 1, timeout_s=300
    )
    own = [
        Case(case.model, strategy="single", world=1, packed=case.packed, settings=numerics)
        for case in cases
        if (numerics := {n: v for n, v in case.settings.items() if n in ("precision", "lora_rank")})
    ]
    by_file = tuple({case.reference: case for case in own}.values())
    run_ranks(lambda: write_references(by_file, folders), 1, timeout_s=300)
