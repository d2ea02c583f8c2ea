"""The runs of a comparison on the results volume, or of several."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stratlab.compare.reading.kept_tuning import apply_tuning, read_tuning
from stratlab.machine.own_program import name_program
from stratlab.run_directory.files import MARKS, is_run
from stratlab.run_directory.foreign import FOREIGN
from stratlab.run_directory.given_folder import check_folder
from stratlab.run_directory.record import RunRecord, read_run
from stratlab.user_error import NothingThere, UserError


def load_runs(folder: Path) -> list[RunRecord]:
    """Reads every folder below a comparison, by name. What is not a run, or not whole, says so in its record.

    Raises:
        NothingThere: `folder` is absent, or without any run.
        UserError: it is not a comparison: a file, a single run, or a folder of comparisons.
    """
    check_folder(folder, "the folder of a comparison, <results>/<comparison>")
    if (folder / "config.json").is_file() or (folder / FOREIGN).is_file():
        raise UserError(
            f"{folder}: this is one run; give the folder of its comparison, {folder.parent} [SL-compare-one-run]"
        )
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not _is_ours(path))
    runs = [read_run(path) for path in below]
    if all(run.status == "not a run" for run in runs):
        if inside := find_comparisons(folder):
            commands = [f"{name_program()} compare {shlex.quote(str(path))}" for path in inside]
            raise UserError(
                f"{folder}: holds comparisons and is none itself; compare one [SL-compare-several]:\n  "
                + "\n  ".join(commands)
            )
        found = ", ".join(path.name for path in below) or "nothing"
        raise NothingThere(
            f"{folder}: no run in it; expected folders with one of {', '.join((*MARKS, FOREIGN))}, found {found} "
            "[SL-compare-no-run]"
        )
    return runs


def load_comparisons(folders: Sequence[Path]) -> list[RunRecord]:
    """Reads the runs of several comparisons as those of one, each as a sweep of its own comparison has tuned it.

    A name that several comparisons have is preceded by that of the folder, and of those above where that is needed.

    Raises:
        NothingThere, UserError: as `load_runs`, or a folder is given twice.
    """
    places = [folder.resolve() for folder in folders]
    if len(set(places)) < len(places):
        raise UserError(f"{', '.join(map(str, folders))}: one of them is given twice [SL-compare-twice]")
    depth = next(
        depth
        for depth in range(1, max(len(place.parts) for place in places) + 1)
        if len({place.parts[-depth:] for place in places}) == len(places)
    )
    found = [
        ("/".join(place.parts[-depth:]), run)
        for folder, place in zip(folders, places, strict=True)
        for run in apply_tuning(load_runs(folder), read_tuning(folder))
    ]
    counts = Counter(run.name for _, run in found)
    return [
        replace(run, name=f"{prefix}/{run.name}") if counts[run.name] > 1 else run for prefix, run in found
    ]


def find_comparisons(folder: Path) -> list[Path]:
    """Folders with runs in them, one or two levels below: of a folder of results, and of the one around it."""
    below = [*folder.glob("*/*/"), *folder.glob("*/*/*/")]
    return sorted({path.parent for path in below if is_run(path)})


def _is_ours(path: Path) -> bool:
    """The report of an earlier comparison, or a hidden folder."""
    if path.name.startswith("."):
        return True
    return all((path / name).is_file() for name in ("report.json", "comparison.csv")) and not is_run(path)
