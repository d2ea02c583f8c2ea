"""Collects the rows, prints them as one table, and writes reports/parity.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.parity.cases import Case, cases_of
from tests.parity.training import STEPS, train_cases
from tests.ranks import run_ranks
from trainer.hardware import processor_name
from trainer.provenance import read_git_sha, read_versions

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "parity.json"


@dataclass
class Report:
    """What this run of the suite has found so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    found = Report()
    request.config.stash[KEY] = found
    yield found
    REPORT.parent.mkdir(exist_ok=True)
    temporary = REPORT.with_suffix(".tmp")
    temporary.write_text(
        json.dumps(
            {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": read_git_sha(),
                "versions": read_versions(),
                "backend": "gloo",
                "hardware": processor_name(),
                "steps": STEPS,
                "repeats": 1,
                "rows": found.rows,
                "mutations": found.mutations,
            },
            indent=1,
        )
        + "\n"
    )
    temporary.replace(REPORT)


KEY = pytest.StashKey[Report]()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case in one process, whole batch, as `<name>.pt`."""
    folder = tmp_path_factory.mktemp("single")
    run_ranks(lambda: train_cases(cases_of("single", 1), folder), 1, timeout_s=300)
    return folder


def _number(value: float | None) -> str:
    return "       -" if value is None else f"{value:8.1e}"


def path_of(folder: Path, case: Case) -> Path:
    return folder / f"{case.name}.pt"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found = config.stash.get(KEY, None)
    if found is None:
        return
    write = terminalreporter.write_line
    terminalreporter.section("parity with one process (gloo, CPU)")
    write(f"{'strategy':9} {'model':16} {'n':>2} {'variant':15} {'loss':>9} {'norm':>9} {'gradient':>9}")
    for row in found.rows:
        numbers = "  ".join(_number(row[name]) for name in ("loss", "grad_norm", "gradient"))
        verdict = "" if row["passed"] else f"  FAILED at {row['parameter']}"
        write(
            f"{row['strategy']:9} {row['model']:16} {row['world_size']:2} {row['variant']:15}  {numbers}{verdict}"
        )
    for mutation in found.mutations:
        write(f"{'caught' if mutation['caught'] else 'MISSED'}: {mutation['name']}")
    write(f"written to {REPORT.relative_to(ROOT)}")
