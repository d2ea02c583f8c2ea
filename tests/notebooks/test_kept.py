"""The notebooks as they are committed: with outputs, of known hardware, without this or any machine's paths."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from notebooks.__main__ import main
from notebooks.execution import FOLDER, WITHOUT_OUTPUTS, list_notebooks, remove_machine
from tests.documents.commands import ROOT

PATH = re.compile(r"(?<![\w.<])/(?:home|root|tmp|work|usr|opt|var|mnt|Users|kaggle)/[\w.-]+")
MOST_BYTES = 300_000


def find_problems(text: str) -> set[str]:
    """What is wrong with a notebook's file."""
    content: dict[str, Any] = json.loads(text)
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    wrong = {
        "path": PATH.search(text),
        "order": [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)),
        "error": any(output["output_type"] == "error" for cell in code for output in cell["outputs"]),
        "no output": not any(cell["outputs"] for cell in code),
        "no hardware": "**Hardware of the outputs below:**" not in "".join(content["cells"][0]["source"]),
        "colours": "\\u001b[" in text,
        "bytes": len(text) > MOST_BYTES,
    }
    return {name for name, found in wrong.items() if found}


@pytest.mark.parametrize("path", list_notebooks(), ids=lambda path: path.stem)
def test_it_can_be_read_without_being_run(path: Path) -> None:
    assert find_problems(path.read_text()) == set()


def test_each_has_its_row_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/notebooks.md").read_text()
    assert WITHOUT_OUTPUTS == ("two_t4",)
    for path in FOLDER.glob("*.ipynb"):
        assert page.count(f"(../notebooks/{path.name})") == 1, path.name
    assert main(["apo"]) == 2 and "api" in capsys.readouterr().err


def test_what_a_cell_says_is_of_no_machine(tmp_path: Path) -> None:
    said = f"run directory: {tmp_path}/results/ddp in {tmp_path}\n[rank1]:[W1126 03:06:06.1 socket.cpp:469] timed out\n"
    cleaned = remove_machine(f"\x1b[1m{said}\x1b[0mdone\n", tmp_path)
    assert cleaned == "run directory: results/ddp in .\ndone\n"
    assert remove_machine(f"{ROOT}/charts/ddp", tmp_path) == "charts/ddp"
