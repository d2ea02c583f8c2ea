"""A plausible mistake as a row of a table: where it is planted, and which tests have to see it."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.nearest import find_nearest
from tests.mutants.standing import find_standing


@dataclass(frozen=True)
class Slip:
    """One plausible mistake.

    Attributes:
        name: of the slip, without blanks.
        says: what would be wrong.
        file: where it is planted.
        search: what stands there, exactly once.
        replacement: what the slip makes of it.
        tests: node ids of pytest, or whole files of tests; together they must fail. Without them: those nearest to
            the file (nearest.py).
        operator: what has made it, where it was drawn (drawing.py).
        equivalent: why no user sees anything of it; empty of all others.
    """

    name: str
    says: str
    file: str
    search: str
    replacement: str
    tests: tuple[str, ...] = ()
    operator: str = ""
    equivalent: str = ""


def read_slips(folder: Path) -> list[Slip]:
    """All slips of a folder's tables, in the order of the tables' names."""
    rows = [
        row for table in sorted(folder.glob("*.toml")) for row in tomllib.loads(table.read_text())["slip"]
    ]
    return [Slip(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def find_tests(slip: Slip, root: Path) -> tuple[str, ...]:
    """The tests that must see a slip."""
    return slip.tests or find_nearest(slip.file, root)


def find_problems(slips: Sequence[Slip], root: Path) -> list[str]:
    """What in the table no longer fits the tree."""
    counts = Counter(slip.name for slip in slips)
    problems = [f"{name}: stands in the table more than once" for name, count in counts.items() if count > 1]
    for slip in slips:
        problems += [f"{slip.name}: {problem}" for problem in _find_wrong_text(slip, root)]
        problems += [f"{slip.name}: there is no {test}" for test in slip.tests if not _is_there(test, root)]
    return problems


def build_key(slip: Slip, root: Path) -> str:
    """Hash of what a result depends on: the slip, its file, its tests' files and what those stand on."""
    tests = {test.partition("::")[0] for test in find_tests(slip, root)}
    files = sorted({slip.file}.union(*(find_standing(test, root) for test in tests)))
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


def _find_wrong_text(slip: Slip, root: Path) -> Iterator[str]:
    whole = (root / slip.file).read_text() if (root / slip.file).is_file() else ""
    count = whole.count(slip.search)
    if count != 1:
        yield f"{slip.file} holds the text {count} times, expected once"
    if slip.search == slip.replacement:
        yield "changes nothing"
    if slip.file.endswith(".py"):
        try:
            ast.parse(whole.replace(slip.search, slip.replacement))
        except SyntaxError as error:
            yield f"leaves no Python behind, which any test sees: {error.msg}"


def _is_there(test: str, root: Path) -> bool:
    path, _, function = test.partition("::")
    if not (root / path).is_file():
        return False
    return not function or f"def {function.partition('[')[0]}(" in (root / path).read_text()
