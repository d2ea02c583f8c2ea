"""A folder that somebody has named: whether it is one, told in the same way by every verb."""

from __future__ import annotations

from pathlib import Path

from stratlab.user_error import NothingThere, UserError


def check_folder(folder: Path, expected: str) -> None:
    """That there is such a folder.

    Raises:
        NothingThere: there is not, or not yet.
        UserError: it is a file.
    """
    if folder.is_dir():
        return
    if folder.exists():
        raise UserError(f"{folder}: not a folder; expected {expected} [SL-folder-is-file]")
    raise NothingThere(f"{folder}: no such folder; expected {expected} [SL-folder-missing]")
