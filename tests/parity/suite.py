"""What both parity suites are made of: gates, differences, planted faults, rows of the report.

tests/parity compares every strategy on images, tests/parity_llm compositions of axes on decoders.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import pytest

from tests.parity_report import write_report

FLOOR = 1e-3
"""Of the whole gradient's norm: below it a parameter's own gradient is rounding noise, not a yardstick."""


@dataclass(frozen=True)
class Gates:
    """Largest allowed differences. `gradient` is relative, per parameter, after the first step; None = any."""

    loss: float = 1e-5
    grad_norm: float = 1e-4
    gradient: float | None = 1e-4


EXACT = Gates()


@dataclass(frozen=True)
class Difference:
    """Largest differences between a run and its reference, and the parameter whose gradient is furthest off."""

    loss: float
    grad_norm: float
    gradient: float | None
    """None where it cannot be read: Adam, adapters under DeepSpeed."""
    parameter: str = ""
    moved_pct: float | None = None
    """Tokens that would have gone to other experts than in the reference, where they are kept from it. With a pipeline
    also what its stages try themselves out with before the first step."""
    complaints: tuple[str, ...] = ()
    """What makes the case fail whatever the numbers are: it ended early, a parameter was lost or wrongly loaded."""


DID_NOT_END = Difference(float("inf"), float("inf"), None, complaints=("did not end",))


class Case(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def world_size(self) -> int: ...

    @property
    def gates(self) -> Gates: ...

    @property
    def labels(self) -> dict[str, Any]:
        """What its row of the report begins with."""


Found = Callable[[Any, str], tuple[Difference, str]]
"""(case, name of the training) -> how far off it was, and what its ranks complained of."""


@dataclass(frozen=True)
class Matrix:
    """Cases to train, checkpoints to continue elsewhere, and the report they are written to."""

    name: str
    cases: tuple[Any, ...]
    report: Path
    steps: Any
    reshardings: tuple[Any, ...] = ()

    @property
    def world_sizes(self) -> list[int]:
        return sorted({case.world_size for case in self.cases})


@dataclass
class Report:
    """What this run of a suite has found so far."""

    matrix: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    reshardings: list[dict[str, Any]] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="session")
def report(matrix: Matrix) -> Iterator[Report]:
    found = Report(matrix.name)
    yield found
    write_report(matrix.report, matrix.steps, vars(found))


def within(found: Difference, gates: Gates) -> bool:
    """Whether all three stay inside the gates; a number that is not finite does not."""
    gradient_holds = found.gradient is None or gates.gradient is None or found.gradient <= gates.gradient
    numbers_hold = found.loss <= gates.loss and found.grad_norm <= gates.grad_norm and gradient_holds
    return numbers_hold and not found.complaints


def check_cases(cases: Iterable[Case], find: Found, report: Report) -> None:
    """Every one stays inside its gates, and its ranks ended well."""
    rows, complaints = [], set()
    for case in cases:
        found, complaint = find(case, case.name)
        complaints.add(complaint)
        rows.append({**case.labels, **asdict(found), "gates": asdict(case.gates)})
        rows[-1]["passed"] = within(found, case.gates)
    report.rows.extend(rows)
    failed = [row for row in rows if not row["passed"]]
    assert not failed and complaints == {""}, "\n".join([*map(str, failed), *complaints])


def check_fault(fault: Fault, find: Found, report: Report) -> None:
    """It is outside the gates of its case, and its ranks ended well."""
    case = fault.case
    found, complaint = find(case, fault.name)
    assert not complaint, complaint
    caught = not within(found, case.gates)
    report.mutations.append({"name": fault.name, "case": case.name, "caught": caught, **asdict(found)})
    assert caught, f"{fault.name}: nothing noticed in {case.name}: {found}"


@dataclass(frozen=True)
class Fault:
    """A deliberate fault, and the case that has to notice it.

    Attributes:
        target: `module:name.of.attribute`, what is replaced while it is planted.
        change: gives the replacement, of what is there.
    """

    name: str
    case: Any
    target: str
    change: Callable[[Any], Any]

    def plant(self) -> AbstractContextManager[Any]:
        module, _, path = self.target.partition(":")
        owner = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return mock.patch.object(owner, name, self.change(getattr(owner, name)))


AVERAGED = ("torch.distributed.fsdp:FSDPModule.set_gradient_divide_factor", lambda whole: lambda *_: None)
"""Gradients averaged instead of summed."""
WARMER = (
    "trainer.models.teacher:Teacher.__init__",
    lambda whole: lambda self, model, heat, *others: whole(self, model, 1.05 * heat, *others),
)
"""A temperature 5 % too high."""
