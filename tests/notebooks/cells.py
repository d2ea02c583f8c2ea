"""The cells of a notebook as a program."""

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


def read_texts(content: Any) -> str:
    """All that the cells have said as text."""
    outputs = [
        output for cell in content["cells"] if cell["cell_type"] == "code" for output in cell["outputs"]
    ]
    said = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join(text if isinstance(text, str) else "".join(text) for text in said)
