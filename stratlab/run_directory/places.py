"""Find the files of a run for readers, and decide where its report's page may link to them.

foreign.json describes traces of another program next to their analysis, instead of a run's own files.

`check_folder` checks a folder that the user has named, in the same way for every verb.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratlab.run_directory.files import LARGEST_WORLD, Shape, read_object
from stratlab.user_error import NothingThere, UserError
from stratlab_spec.run_directory import write_json

MERGED = "merged_trace.json.gz"
PAGE = "report.html"
FETCHED = ".fetched.json"
"""In the copy of a run that `stratlab fetch` made: {"without": [parts that stayed on the volume]}."""
SERVER = {"tracking_uri": str, "experiment_id": str, "run_id": str}
"""Of mlflow.json: the place of a run in MLflow."""
ABOVE = 3
"""Folders above a run below which a page may link to it: comparison, results, and their folder."""


def find_page(run_dir: Path) -> Path:
    """Return the page of its analysis; need not exist."""
    return run_dir / "analysis" / PAGE


def find_pod_logs(run_dir: Path) -> Path:
    """Return the folder of a rehearsal's logs; runs on a cluster have no such folder."""
    run_dir = run_dir.resolve()
    return run_dir.parent / ".logs" / run_dir.name


def find_comparison_page(run_dir: Path) -> Path:
    """Return the default page of `stratlab compare`; it need not exist."""
    return run_dir.parent / "report" / PAGE


def find_rank_traces(run_dir: Path) -> dict[int, Path]:
    return _by_rank(run_dir / "traces", "*_trace.json*")


def find_rank_logs(run_dir: Path) -> dict[int, Path]:
    return _by_rank(run_dir / "ranks", "rank*.log")


def _by_rank(folder: Path, pattern: str) -> dict[int, Path]:
    """Return rank -> file, by rank."""
    numbered = [(re.search(r"\d+", path.name), path) for path in folder.glob(pattern) if path.is_file()]
    return dict(sorted((int(number[0]), path) for number, path in numbered if number))


def is_beside(run_dir: Path, page_folder: Path) -> bool:
    """Return whether a page is in the run's comparison, its results, or the folder above these."""
    page = page_folder.resolve()
    above = [folder for folder in run_dir.resolve().parents[:ABOVE] if folder.parent != folder]
    return any(folder == page or folder in page.parents for folder in above)


FOREIGN = "foreign.json"
SHAPE: Shape = {
    "experiment": str,
    "source": str,
    "source_path": str,
    "world_size": (int, type(None)),
    "traces": list,
}


def read_foreign(folder: Path, problems: list[str]) -> dict[str, Any]:
    """Return the content of foreign.json; {} if it is missing. An impossible number of ranks is left out."""
    found = read_object(folder / FOREIGN, problems, SHAPE)
    if not 1 <= (found.get("world_size") or 1) <= LARGEST_WORLD:
        problems.append(
            f"{FOREIGN}: world_size {str(found.pop('world_size'))[:20]} is left out [SL-foreign-world-size]"
        )
    return found


def write_foreign(folder: Path, content: Mapping[str, Any]) -> None:
    """Write foreign.json in one step."""
    write_json(folder / FOREIGN, content)


def check_folder(folder: Path, expected: str) -> None:
    """Check that the folder exists.

    Raises:
        NothingThere: it does not exist, or not yet.
        UserError: it is a file.
    """
    if folder.is_dir():
        return
    if folder.exists():
        raise UserError(f"{folder}: not a folder; expected {expected} [SL-folder-is-file]")
    raise NothingThere(f"{folder}: no such folder; expected {expected} [SL-folder-missing]")
