"""A plausible mistake as a row of a table: where it is planted, and which tests have to see it."""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Slip:
    """One plausible mistake.

    Attributes:
        name: of the slip, without blanks.
        says: what would be wrong.
        file: where it is planted.
        search: what stands there, exactly once.
        replacement: what the slip makes of it.
        tests: node ids of pytest; together they must fail.
    """

    name: str
    says: str
    file: str
    search: str
    replacement: str
    tests: tuple[str, ...]


def read_slips(table: Path) -> list[Slip]:
    """All slips, in the order of the table."""
    rows = tomllib.loads(table.read_text())["slip"]
    return [Slip(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def find_problems(slips: Sequence[Slip], root: Path) -> list[str]:
    """What in the table no longer fits the tree."""
    problems = []
    for name in {slip.name for slip in slips if sum(slip.name == other.name for other in slips) > 1}:
        problems.append(f"{name}: stands in the table more than once")
    for slip in slips:
        count = (root / slip.file).read_text().count(slip.search) if (root / slip.file).is_file() else 0
        if count != 1:
            problems.append(f"{slip.name}: {slip.file} holds the text {count} times, expected once")
        if slip.search == slip.replacement:
            problems.append(f"{slip.name}: changes nothing")
        for test in slip.tests:
            path, _, function = test.partition("::")
            function = function.partition("[")[0]
            if not (root / path).is_file() or f"def {function}(" not in (root / path).read_text():
                problems.append(f"{slip.name}: there is no {test}")
    return problems


def build_key(slip: Slip, root: Path) -> str:
    """Hash of what a result depends on, as far as it lies close by."""
    files = sorted({slip.file, *(test.partition("::")[0] for test in slip.tests)})
    parts = [repr(slip).encode(), *((root / name).read_bytes() for name in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@contextlib.contextmanager
def planted(slip: Slip, tree: Path) -> Iterator[None]:
    """The slip in `tree`, for as long as the context lasts."""
    path = tree / slip.file
    whole = path.read_text()
    path.write_text(whole.replace(slip.search, slip.replacement))
    try:
        yield
    finally:
        path.write_text(whole)
