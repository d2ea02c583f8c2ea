"""Where the files of a run lie that a reader wants to open, and where its report's page may link to them."""

from __future__ import annotations

import re
from pathlib import Path

MERGED = "merged_trace.json.gz"
PAGE = "report.html"
FETCHED = ".fetched.json"
"""In the copy of a run that `stratlab fetch` made: {"without": [what stayed on the volume]}."""
SERVER = {"tracking_uri": str, "experiment_id": str, "run_id": str}
"""Of mlflow.json: where a run is in MLflow."""
ABOVE = 3
"""Folders above a run below which a page may lie that links to it: comparison, results, what holds the results."""


def find_page(run_dir: Path) -> Path:
    """Of its analysis; need not exist."""
    return run_dir / "analysis" / PAGE


def find_pod_logs(run_dir: Path) -> Path:
    """The folder where a rehearsal keeps its logs; of a run on a cluster there is none."""
    run_dir = run_dir.resolve()
    return run_dir.parent / ".logs" / run_dir.name


def find_comparison_page(run_dir: Path) -> Path:
    """Where `stratlab compare` writes it if not told otherwise; need not exist."""
    return run_dir.parent / "report" / PAGE


def find_rank_traces(run_dir: Path) -> dict[int, Path]:
    return _by_rank(run_dir / "traces", "*_trace.json*")


def find_rank_logs(run_dir: Path) -> dict[int, Path]:
    return _by_rank(run_dir / "ranks", "rank*.log")


def _by_rank(folder: Path, pattern: str) -> dict[int, Path]:
    """rank -> file, by rank."""
    numbered = [(re.search(r"\d+", path.name), path) for path in folder.glob(pattern) if path.is_file()]
    return dict(sorted((int(number[0]), path) for number, path in numbered if number))


def is_beside(run_dir: Path, page_folder: Path) -> bool:
    """Whether a page lies with the run: in its comparison, its results, or the folder that holds these."""
    page = page_folder.resolve()
    above = [folder for folder in run_dir.resolve().parents[:ABOVE] if folder.parent != folder]
    return any(folder == page or folder in page.parents for folder in above)
