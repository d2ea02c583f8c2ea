"""What can be wrong with the installation, in one sentence each: a missing package, another's files among these."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "stratlab-trainer"
WHEEL = "dist/stratlab_trainer-*.whl dist/stratlab_spec-*.whl of `make dist`"
PLACE = Path(__file__).parents[1]
WRONG_INSTALLATION = 2


@contextmanager
def packages_needed() -> Iterator[None]:
    """Ends the program with a sentence where a package cannot be imported; a module of our own stays a bug.

    With another one where a further distribution has installed files among these: nobody knows whose are imported.
    """
    if others := find_intruders(PLACE):
        names = " ".join(other.split()[0] for other in others)
        print(
            f"{PLACE / 'trainer'} holds files of {DISTRIBUTION} and of another distribution, {', '.join(others)}: "
            f"pip uninstall {names}, then pip install --force-reinstall --no-deps {WHEEL}; "
            "or give each an environment of its own [SL-installation-mixed]",
            file=sys.stderr,
        )
        sys.exit(WRONG_INSTALLATION)
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in ("trainer", "stratlab_spec"):
            raise
        print(
            f"the trainer needs {missing.name}, which is not installed here [SL-package-absent]: pip install {WHEEL}",
            file=sys.stderr,
        )
        sys.exit(WRONG_INSTALLATION)


@cache
def find_intruders(place: Path) -> tuple[str, ...]:
    """`name version` of every other distribution that has put files into the `trainer` of this folder.

    By pip's own records, which are searched as they are: 8 ms of a processor with 200 packages, where
    `packages_distributions` takes 110. Another `trainer` elsewhere does no harm once this one was found.
    """
    found = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            name, is_record, _ = entry.name.rpartition(".dist-info")
            if not is_record or name.startswith(f"{DISTRIBUTION.replace('-', '_')}-"):
                continue
            with suppress(OSError), open(f"{entry.path}/RECORD", "rb") as file:
                record = file.read()
                if record.startswith(b"trainer/") or b"\ntrainer/" in record:
                    found.append(name.replace("-", " ").replace("_", "-"))
    return tuple(sorted(found))


def read_version() -> str:
    """Of the installed package; `unknown` where its code alone was copied."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
