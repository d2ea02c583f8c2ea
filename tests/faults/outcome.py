"""What the tests of a fault have come to, and the figures that they told; the pytest plugin that writes it down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix import FIGURES, Fault

RECORD = "fault-record"


@dataclass(frozen=True)
class Outcome:
    """Of one test.

    Attributes:
        result: passed, failed or skipped.
        seconds: with its fixtures.
        figures: what it gave to `record_property`.
    """

    test: str
    result: str
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(f"--{RECORD}", type=Path, help="a line for each test goes there")


class Writer:
    """Appends one line per test when its last phase has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._phases: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when != "teardown":
            return
        results = {phase.outcome for phase in phases}
        result = next(name for name in ("failed", "skipped", "passed") if name in results)
        figures = dict(report.user_properties)
        line = {
            "test": report.nodeid.removeprefix("tests/"),
            "result": result,
            "seconds": sum(phase.duration for phase in phases),
            "figures": figures,
        }
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(RECORD.replace("-", "_"))
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(path))


def read_outcomes(path: Path) -> list[Outcome]:
    """None where pytest has not come to a test."""
    return [Outcome(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def judge_fault(fault: Fault, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """A row of the table: passed only if each of its tests, or places of tests, has one that passed and none else.

    A figure is the largest that any of its tests told: what is lost, and how long it takes, at worst.
    """
    found = {test: [each for each in outcomes if _belongs(each.test, test)] for test in fault.tests}
    ended = [each for several in found.values() for each in several]
    missing = [test for test, several in found.items() if not several]
    wrong = [f"{each.test}: {each.result}" for each in ended if each.result != "passed"]
    figures: dict[str, Any] = {}
    for each in ended:
        for name, value in each.figures.items():
            figures[name] = max(figures.get(name, value), value)
    return {
        "fault": fault.number, "what": fault.what, "injected": fault.injected, "must": fault.must,
        "stand_in": fault.stand_in, "passed": not missing and not wrong, "tests": len(ended),
        "seconds": round(sum(each.seconds for each in ended), 1), "figures": figures,
        "problems": wrong + [f"{test}: no test ran" for test in missing],
    }  # fmt: skip


def _belongs(test: str, place: str) -> bool:
    """`place` is the test, its function without parameters, its file, or a folder above it."""
    return test == place or (test.startswith(place) and test[len(place)] in "[:/")


def write_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Markdown."""
    names = [*FIGURES]
    lines = [
        "| fault | what | injected | must | outcome | "
        + " | ".join(name.replace("_", " ") for name in names)
        + " |",
        "|" + "---|" * (5 + len(names)),
    ]
    for row in rows:
        outcome = (
            f"passed ({row['tests']})" if row["passed"] else "**failed**: " + "; ".join(row["problems"])[:300]
        )
        outcome += f" at {row['commit']}" if "commit" in row else ""
        injected = row["injected"] + (f" (stand-in: {row['stand_in']})" if row["stand_in"] else "")
        figures = [str(row["figures"].get(name, "")) for name in names]
        lines.append(
            "| " + " | ".join([row["fault"], row["what"], injected, row["must"], outcome, *figures]) + " |"
        )
    told = "; ".join(f"{name.replace('_', ' ')}: {text}" for name, text in FIGURES.items())
    return (
        "\n".join([*lines, "", f"The largest that any test of a fault told. {told[0].upper()}{told[1:]}."])
        + "\n"
    )
