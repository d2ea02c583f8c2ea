"""Where traces of another program may lie, and where their analysis may go."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratlab.analysis.analyze import check_replaceable
from stratlab.run_directory.files import MARKS, RUN_FOLDERS, is_run
from stratlab.run_directory.foreign import FOREIGN, read_foreign
from stratlab.traces.archives import find_archive_stem
from stratlab.traces.experiments import Experiment
from stratlab.user_error import UserError

OURS = {FOREIGN, "analysis"}


def is_foreign(source: Path) -> bool:
    """Whether `source` is no run directory of this lab, and holds what may be traces of another program: an archive, a
    file, or a folder without a run's own files. One with traces/ that holds files, and with nothing but what runs have
    beside it, is a run that has lost its own."""
    if source.is_file():
        return True
    if not source.is_dir() or _has_marks(source):
        return False
    there = [path for path in source.iterdir() if not path.name.startswith(".")]
    traces = next((path for path in there if path.name == "traces" and path.is_dir()), None)
    if traces is None or any(_is_of_no_run(path) for path in there):
        return any(there)
    inside = list(traces.iterdir())
    return any(path.is_dir() for path in inside) and not any(path.is_file() for path in inside)


def _has_marks(folder: Path) -> bool:
    """A config.json alone may be that of another program."""
    marks = [mark for mark in MARKS if (folder / mark).is_file()]
    return is_run(folder) or marks not in ([], ["config.json"])


def _is_of_no_run(path: Path) -> bool:
    if path.is_dir():
        return path.name not in RUN_FOLDERS
    return find_archive_stem(path.name) is not None


def check_source(source: Path, output: Path) -> None:
    """A run of this lab is no source, and the source is no place for results.

    Raises:
        UserError: `source` or `output` cannot be used.
    """
    if source.is_dir():
        runs = sorted(path.name for path in source.iterdir() if path.is_dir() and is_run(path))
        if runs:
            raise UserError(
                f"{source}: a comparison of this lab, not traces of another program; analyze one of its runs: "
                f"{', '.join(str(source / name) for name in runs[:3])} [SL-source-is-comparison]"
            )
        if output.resolve() == source.resolve():
            raise UserError(
                f"--output {output}: expected another folder than that of the traces [SL-output-is-source]"
            )
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: expected a folder [SL-output-is-file]")


def check_place(folder: Path, experiment: Experiment, source: Path) -> None:
    """An analysis takes the place of an earlier one of the same source, and of nothing else.

    Raises:
        UserError: `folder` holds something else.
    """
    if not folder.exists():
        return
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
    other = [name for name in there if name not in OURS and not name.startswith(".analysis-")]
    if other:
        raise UserError(
            f"{folder}: holds {other[0]}, which is of no analysis; choose another --output [SL-output-of-others]"
        )
    known = read_foreign(folder, [])
    if known and not _is_of(known, experiment, source):
        told = known.get("source_path") or known.get("source") or "other traces"
        raise UserError(
            f"{folder}: holds the analysis of {told}; choose another --output [SL-output-other-source]"
        )
    check_replaceable(folder / "analysis")


def _is_of(known: Mapping[str, Any], experiment: Experiment, source: Path) -> bool:
    """Whether it was made of this source, which may have changed since, or moved."""
    if known.get("source_path") == str(source.resolve()):
        return True
    rows = [row for row in known.get("traces", []) if isinstance(row, dict)]
    if not rows or not all(isinstance(row.get("sha256"), str) for row in rows):
        return False
    there = {hash_file(trace.file.path) for trace in experiment.traces.values()}
    return {row["sha256"] for row in rows} <= there


def hash_file(path: Path) -> str:
    """Its sha256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
