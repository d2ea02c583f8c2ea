"""`pip install stratlab` alone brings neither half of the project: what is missing is said in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

MISSING_PACKAGE = 2


@contextmanager
def packages_needed() -> Iterator[None]:
    """Ends the program with a sentence where a package cannot be imported; a module of our own stays a bug."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "trainer":
            raise
        print(
            f"the trainer needs {missing.name}, which is not installed here: pip install 'stratlab[trainer]'",
            file=sys.stderr,
        )
        sys.exit(MISSING_PACKAGE)


def read_version() -> str:
    """Of the installed package; `unknown` where its code alone was copied."""
    try:
        return version("stratlab")
    except PackageNotFoundError:
        return "unknown"
