"""foreign.json: what lies beside the analysis of traces that this lab did not make, instead of a run's own files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratlab.run_directory.files import LARGEST_WORLD, Shape, read_object
from stratlab_spec.run_directory import write_json

FOREIGN = "foreign.json"
SHAPE: Shape = {
    "experiment": str,
    "source": str,
    "source_path": str,
    "world_size": (int, type(None)),
    "traces": list,
}


def read_foreign(folder: Path, problems: list[str]) -> dict[str, Any]:
    """What it says; {} where there is none. A number of ranks that cannot be is left out."""
    found = read_object(folder / FOREIGN, problems, SHAPE)
    if not 1 <= (found.get("world_size") or 1) <= LARGEST_WORLD:
        problems.append(
            f"{FOREIGN}: world_size {str(found.pop('world_size'))[:20]} is left out [SL-foreign-world-size]"
        )
    return found


def write_foreign(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes it in one step."""
    write_json(folder / FOREIGN, content)
