"""The small files of every run, and the logs, as one archive that comes back."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

ARCHIVE = "runs.tar.gz"
LARGEST_FILE = 1 << 20
LEFT_OUT = ("traces", "analysis", "model", "best_model", "checkpoints")


def bundle_runs(work: Path, out: Path) -> dict[str, Any]:
    """config.json, summary.json, metrics, rank facts and logs, each below 1 MiB, to `out/runs.tar.gz`."""
    files = [path for path in sorted((work / "logs").glob("*.log")) if path.stat().st_size < LARGEST_FILE]
    for path in sorted((work / "results").rglob("*")):
        small = path.is_file() and path.stat().st_size < LARGEST_FILE
        if small and not set(path.relative_to(work).parts) & set(LEFT_OUT):
            files.append(path)
    if not files:
        return {"runs_files": 0}
    temporary = out / f".{ARCHIVE}.tmp"
    with tarfile.open(temporary, "w:gz") as archive:
        for path in files:
            archive.add(path, str(path.relative_to(work)))
    temporary.rename(out / ARCHIVE)
    return {"runs_files": len(files), "runs_bytes": (out / ARCHIVE).stat().st_size}
