"""notebooks/api.ipynb as committed runs to its end, and a run from it leaves what the command leaves."""

import json
from pathlib import Path

from notebooks.execution import FOLDER, execute
from tests.notebooks.cells import read_texts
from tests.run_directories import list_differences


def test_a_run_from_a_notebook_is_the_command_s(tmp_path: Path) -> None:
    content = execute(FOLDER / "api.ipynb", tmp_path)
    runs = tmp_path / "results/runs/notebook-api"
    assert list_differences(runs / "ddp", runs / "typed") == []
    assert list_differences(runs / "ddp", runs / "zero2")  # what compares sees another strategy
    assert json.loads((runs / "ddp/summary.json").read_text())["steps"] == 12
    said = read_texts(content)
    assert "True (12 steps)" in said and "exit code 2" in said
    by_hand, in_the_run = (
        float(word) for word in said.split("by hand ")[1].split("\n")[0].split(", in the run ")
    )
    assert by_hand == in_the_run
