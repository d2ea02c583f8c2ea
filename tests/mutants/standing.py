"""The files that a file of tests stands on: what it imports of tests/, and the conftest.py files above it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path, PurePath


def find_standing(test: str, root: Path) -> set[str]:
    """Paths below `root`, the test's own among them; imports are followed, those inside of functions too.

    Args:
        test: path of a file of tests, relative to `root`.
    """
    found: set[str] = set()
    waiting = [test, *_conftests(PurePath(test))]
    while waiting:
        name = waiting.pop()
        if name not in found and (root / name).is_file():
            found.add(name)
            waiting += [*_places((root / name).read_text())] if name.endswith(".py") else []
    return found


def _conftests(test: PurePath) -> Iterator[str]:
    yield from (str(folder / "conftest.py") for folder in test.parents)


@functools.cache
def _places(text: str) -> tuple[str, ...]:
    """Where modules of tests/ that this text imports may lie."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    paths = [name.replace(".", "/") for name in names if name.split(".")[0] == "tests"]
    return tuple(f"{path}{end}" for path in paths for end in (".py", "/__init__.py"))
