"""What the tests of a fault have come to, and the figures that they told."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.matrix import FIGURES, Fault


@dataclass(frozen=True)
class Outcome:
    """Of one test: passed or not, seconds with its fixtures, what it gave to `record_property`."""

    test: str
    passed: bool
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)


def read_outcomes(junit: Path) -> list[Outcome]:
    """Of pytest's --junitxml; none where pytest has not come to its end."""
    if not junit.exists():
        return []
    found = []
    for case in ElementTree.parse(junit).iter("testcase"):
        figures: dict[str, float] = {}
        for each in case.iter("property"):
            with suppress(ValueError):
                figures[each.attrib["name"]] = float(each.attrib["value"])
        path = case.attrib["classname"].removeprefix("tests.").replace(".", "/")
        passed = not any(part.tag in ("failure", "error", "skipped") for part in case)
        test = f"{path}.py::{case.attrib['name']}"
        found.append(Outcome(test, passed, float(case.attrib["time"]), figures))
    return found


def judge_fault(fault: Fault, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """A row of the table: passed only if each of its tests, or places of tests, has one that passed and none else.

    A figure is the largest that any of its tests told: what is lost, and how long it takes, at worst.
    """
    found = {test: [each for each in outcomes if _belongs(each.test, test)] for test in fault.tests}
    ended = [each for several in found.values() for each in several]
    problems = [f"{each.test}: not passed" for each in ended if not each.passed]
    problems += [f"{test}: no test ran" for test, several in found.items() if not several]
    figures: dict[str, float] = {}
    for name, value in (pair for each in ended for pair in each.figures.items()):
        figures[name] = max(figures.get(name, value), value)
    return {
        "fault": fault.number, "what": fault.what, "injected": fault.injected, "must": fault.must,
        "stand_in": fault.stand_in, "passed": not problems, "tests": len(ended),
        "seconds": round(sum(each.seconds for each in ended), 1), "figures": figures, "problems": problems,
    }  # fmt: skip


def _belongs(test: str, place: str) -> bool:
    """`place` is the test, its function without parameters, its file, or a folder above it."""
    return test == place or (test.startswith(place) and test[len(place)] in "[:/")


def write_table(rows: Iterable[Mapping[str, Any]]) -> str:
    heads = ["fault", "what", "injected", "must", "outcome", *(name.replace("_", " ") for name in FIGURES)]
    lines = [_join(heads), "|" + "---|" * len(heads)]
    for row in rows:
        failed = "**failed**: " + "; ".join(row["problems"])[:300]
        outcome = f"passed ({row['tests']})" if row["passed"] else failed
        outcome += f" at {row['commit']}" if "commit" in row else ""
        injected = row["injected"] + (f" (stand-in: {row['stand_in']})" if row["stand_in"] else "")
        figures = [f"{row['figures'][name]:g}" if name in row["figures"] else "" for name in FIGURES]
        lines.append(_join([row["fault"], row["what"], injected, row["must"], outcome, *figures]))
    told = "; ".join(f"{name.replace('_', ' ')}: {text}" for name, text in FIGURES.items())
    return "\n".join([*lines, "", f"The largest that any test of a fault told: {told}."]) + "\n"


def _join(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
