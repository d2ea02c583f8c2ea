"""What a rehearsal creates on disk, and takes away again when nothing came of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stratlab.run_directory.files import is_alive, is_run
from stratlab.user_error import UserError


def make_folder(folder: Path) -> list[Path]:
    """Creates `folder` and its parents; returns those that were not there, the outermost first.

    Raises:
        UserError: it cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()][::-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise UserError(f"{folder}: cannot be created ({failure.strerror}) [SL-folder-not-made]") from failure
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those of `folders` that are empty, the last first."""
    for folder in reversed(list(folders)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def check_free(run_dir: Path, *, replace: bool) -> None:
    """Raises UserError when a run would end up in a folder that is taken already."""
    if not run_dir.exists():
        return
    if not run_dir.is_dir() or (any(run_dir.iterdir()) and not is_run(run_dir)):
        raise UserError(
            f"{run_dir}: there is something else than a run, choose another --results or --name [SL-folder-taken]"
        )
    if replace and is_alive(run_dir):
        raise UserError(
            f"{run_dir}: this run is at work, it has written something just now; stop it first "
            "(if it was killed, it can be replaced in two minutes) [SL-rehearse-run-live]"
        )
    if (run_dir / "summary.json").is_file() and not replace:
        raise UserError(
            f"{run_dir}: this run is there already and has finished. "
            "Give --replace to remove it and start anew, or --name for another name [SL-rehearse-run-finished]"
        )


@contextmanager
def replaced(run_dir: Path, *, replace: bool) -> Iterator[None]:
    """Puts an old run directory aside; removes it when a new one came into being, puts it back otherwise."""
    aside = run_dir.with_name(f".{run_dir.name}.replaced")
    if not replace or not run_dir.exists():
        yield
        return
    shutil.rmtree(aside, ignore_errors=True)
    run_dir.rename(aside)
    try:
        yield
    finally:
        if run_dir.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(run_dir)
