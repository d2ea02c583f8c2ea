"""Where traces of another program may lie, and where their analysis may go."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratlab.analysis.analyze import check_replaceable
from stratlab.run_directory.files import has_marks
from stratlab.run_directory.foreign import FOREIGN, read_foreign
from stratlab.traces.experiments import Experiment
from stratlab.user_error import UserError

OURS = {FOREIGN, "analysis"}


def check_source(source: Path, output: Path) -> None:
    """A run of this lab is no source, and the source is no place for results.

    Raises:
        UserError: `source` or `output` cannot be used.
    """
    if source.is_dir():
        runs = sorted(path.name for path in source.iterdir() if path.is_dir() and has_marks(path))
        if runs:
            raise UserError(
                f"{source}: a comparison of this lab, not traces of another program; analyze one of its runs: "
                f"{', '.join(str(source / name) for name in runs[:3])}"
            )
        if output.resolve() == source.resolve():
            raise UserError(f"--output {output}: expected another folder than that of the traces")
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: expected a folder")


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
        raise UserError(f"{folder}: holds {other[0]}, which is of no analysis; choose another --output")
    known = read_foreign(folder, [])
    if known and not _is_of(known, experiment, source):
        told = known.get("source_path") or known.get("source") or "other traces"
        raise UserError(f"{folder}: holds the analysis of {told}; choose another --output")
    check_replaceable(folder / "analysis")


def _is_of(known: Mapping[str, Any], experiment: Experiment, source: Path) -> bool:
    """Whether it was made of this source, which may have changed since, or moved."""
    if known.get("source_path") == str(source.resolve()):
        return True
    rows = [row for row in known.get("traces", []) if isinstance(row, dict)]
    there = {hash_file(trace.file.path) for trace in experiment.traces.values()}
    return bool(rows) and {row.get("sha256") for row in rows} <= there


def hash_file(path: Path) -> str:
    """Its sha256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
