"""What a run has recorded beside its traces, and what opens it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KINDS = (
    (
        "memory snapshot",
        "traces/memory_snapshots",
        ".pickle",
        "every allocation of the recorded steps on one rank; pytorch.org/memory_viz opens it in the browser",
    ),
    (
        "flops profiler",
        "traces",
        "flops_profiler.txt",
        "operations of the forward pass by module, of one micro-batch on rank 0, as DeepSpeed counts them",
    ),
    (
        "flight recorder",
        "hangs/flight_recorder",
        "",
        "the last collectives of one rank when one of them timed out; a pickle for torchfrtrace",
    ),
)
"""Name, folder below the run, end of a file's name, what it is."""


def find_recordings(run_dir: Path) -> list[dict[str, Any]]:
    """One row per kind that is there: `recording`, `what`, and its `files` with their bytes, below the run."""
    rows = []
    for kind, folder, ending, what in KINDS:
        files = {f"{folder}/{name}": size for name, size in _list_files(run_dir / folder, ending)}
        if files:
            rows.append({"recording": kind, "what": what, "files": files})
    return rows


def _list_files(folder: Path, ending: str) -> list[tuple[str, int]]:
    """In the order of their ranks; none of a folder that is not there or not readable."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.name, entry.stat(follow_symlinks=False).st_size)
                for entry in entries
                if entry.is_file(follow_symlinks=False)
                and entry.name.endswith(ending)
                and entry.name.isprintable()
                and not entry.name.startswith(".")
            ]
    except OSError:
        return []
    return sorted(found, key=lambda file: (len(file[0]), file[0]))
