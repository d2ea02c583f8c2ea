"""Trains the references once, collects the rows, and writes reports/parity.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.parity.cases import Case, cases_of
from tests.parity.training import STEPS, train_cases
from tests.parity_report import PARITY, write_report
from tests.ranks import run_ranks


@dataclass
class Report:
    """What this run of the suite has found so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    found = Report()
    yield found
    write_report(PARITY, STEPS, vars(found))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case in one process, whole batch, as `<name>.pt`."""
    folder = tmp_path_factory.mktemp("single")
    run_ranks(lambda: train_cases(cases_of("single", 1), folder), 1, timeout_s=300)
    return folder


def path_of(folder: Path, case: Case) -> Path:
    return folder / f"{case.name}.pt"
