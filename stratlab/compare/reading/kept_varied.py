"""Which settings the runs of a comparison are meant to differ in, as the sweep has kept it beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from stratlab.user_error import UserError

FILE = "varied.json"


def read_varied(folder: Path) -> tuple[str, ...]:
    """The names in the folder of a comparison; none where no sweep has left them.

    Raises:
        UserError: there is a file of this name that is something else.
    """
    file = folder / FILE
    if not file.is_file():
        return ()
    try:
        found = json.loads(file.read_text())["varied"]
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise ValueError("`varied` is no list of names")
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise UserError(
            f"{file}: not the varied settings of a sweep ({failure}); move it away [SL-varied-file]"
        ) from failure
    return tuple(found)


def read_varied_of(folders: Sequence[Path]) -> tuple[str, ...]:
    """The names that any of the folders has."""
    return tuple(dict.fromkeys(name for folder in folders for name in read_varied(folder)))


def keep_varied(folder: Path, varied: Sequence[str]) -> None:
    """Puts the names beside the runs, whole or not at all."""
    temporary = folder / f".{FILE}.tmp"
    temporary.write_text(json.dumps({"varied": list(varied)}) + "\n")
    os.replace(temporary, folder / FILE)
