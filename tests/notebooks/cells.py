"""The cells of a notebook as a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TWO_T4 = ROOT / "notebooks" / "two_t4.ipynb"


def read_cells(notebook: Path) -> list[str]:
    """Sources of the code cells, in their order."""
    content: dict[str, Any] = json.loads(notebook.read_text())
    assert content["nbformat"] == 4
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def find_cell(notebook: Path, text: str) -> str:
    """The one code cell with this text."""
    (cell,) = [source for source in read_cells(notebook) if text in source]
    return cell
