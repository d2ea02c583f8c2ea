"""Problems of the installation, in one sentence each: a missing package, or files of another
distribution.
"""

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
    """End the program with a message if a package cannot be imported; a missing module of this project stays a bug.

    Another message names further distributions with files in this folder, because either's modules may be imported.
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
    """Return `name version` of every other distribution that has put files into the `trainer` of this folder.

    It searches pip's own records directly: 8 ms of a processor with 200 packages; `packages_distributions` takes 110
    ms. Another `trainer` elsewhere does no harm once the right package was found.
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
    """Return the version of the installed package; `unknown` if only its code was copied."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
