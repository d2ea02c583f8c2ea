"""The nightly suites: each a command that ends with 0, and a smallest case of it that every change runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "reports"
RAW = REPORTS / "raw"
"""Logs and what suites write for themselves; not kept in git."""


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes:
        name: of the suite and of its result file, reports/<name>.json.
        proves: what is known when it has passed.
        command: the whole suite; {python} and {cluster} are put in.
        smallest: options that make one small case of it, two minutes at most; None where an earlier part of CI is
            that case.
        minutes: of the whole suite on two cores, about.
        folders: of the tests that this suite runs, and no other.
        facts: a file below reports/raw/ in which the command leaves what it found; kept in the result.
    """

    name: str
    proves: str
    command: tuple[str, ...]
    smallest: tuple[str, ...] | None
    minutes: int
    folders: tuple[str, ...] = ()
    facts: str = ""

    def owns(self, path: PurePath) -> bool:
        """Whether a test file, relative to the project, is one of this suite's."""
        return any(path.is_relative_to(folder) for folder in self.folders)


PYTEST = ("{python}", "-m", "pytest")

SUITES: tuple[Suite, ...] = ()


def find_suite(name: str) -> Suite:
    """The suite of this name.

    Raises:
        KeyError: there is none.
    """
    return {suite.name: suite for suite in SUITES}[name]
