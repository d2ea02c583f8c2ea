"""A run's folder goes: all of it, and nothing that is no run."""

from __future__ import annotations

import shutil
from pathlib import Path

from stratlab.run_directory.files import is_alive, is_run
from stratlab.run_directory.given_folder import check_folder
from stratlab.tracking.mlflow_run import delete_run
from stratlab.user_error import NothingThere, UserError


def find_run(folder: Path) -> Path:
    """The folder, if it is a run's.

    Raises:
        NothingThere: there is none.
        UserError: it is a file, a link, or at work.
    """
    check_folder(folder, "the folder of a run")
    if folder.is_symlink():
        raise UserError(f"{folder}: a link; expected the folder of a run itself [SL-remove-link]")
    if any(folder.iterdir()) and not is_run(folder):
        raise NothingThere(
            f"{folder}: not a run: nothing in it says that the trainer has made it [SL-remove-no-run]"
        )
    if is_alive(folder):
        raise UserError(
            f"{folder}: this run is at work, it has written something just now; stop it first "
            "(if it was killed, it can be removed in two minutes) [SL-remove-run-live]"
        )
    return folder.absolute()


def remove_run(folder: Path, with_mlflow: bool = False) -> str:
    """Removes the folder, and what a rehearsal keeps of its processes' output beside it; says what MLflow lost.

    It gets another name first, so that nobody meets half of it.

    Args:
        with_mlflow: its run in MLflow too, and first: the folder says which one that is.

    Raises:
        UserError: it is no run, or may not be removed.
    """
    found = find_run(folder)
    said = delete_run(found) if with_mlflow else ""
    aside = found.with_name(f".{found.name}.removed")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        found.rename(aside)
        shutil.rmtree(aside)
    except OSError as failure:
        raise UserError(
            f"{folder}: cannot be removed ({failure.strerror or failure}) [SL-folder-not-removed]"
        ) from failure
    shutil.rmtree(found.parent / ".logs" / found.name, ignore_errors=True)
    return said
