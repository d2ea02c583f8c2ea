"""Executes a notebook from its first cell to its last in a folder of its own; takes this machine out of its outputs.

Outputs are those of the machine that `make notebooks` was last called on; each notebook says which hardware that is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from trainer.run import read_git_sha

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
WITHOUT_OUTPUTS = ("two_t4",)
"""What they show needs GPUs."""
READ = ("charts", "examples", "experiments", "tests")
"""Of the repository; notebooks name them from its top."""
WORKBENCH = FOLDER / "workbench.py"
CELL_TIMEOUT_S = 1800
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LIBRARY_LOG = re.compile(r"^\[rank\d+\]:\[[WI]\d+ .*\n", re.MULTILINE)
"""Of torch's C++ parts: times, addresses, line numbers."""


def list_notebooks() -> list[Path]:
    """Those that are kept with their outputs."""
    return sorted(path for path in FOLDER.glob("*.ipynb") if path.stem not in WITHOUT_OUTPUTS)


def execute(path: Path, work: Path) -> Any:
    """The notebook with the outputs of a run in `work`, which becomes the top of a repository with links to this one.

    Raises:
        CellExecutionError: of the first cell that fails, with its traceback.
    """
    for name in READ:
        (work / name).symlink_to(ROOT / name)
    (work / WORKBENCH.name).symlink_to(WORKBENCH)
    content = nbformat.read(path, as_version=4)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "150", "TERM": "dumb", "PYTHONWARNINGS": "ignore"}
    env["STRATLAB_GIT_SHA"] = read_git_sha() or ""  # a commit meanwhile would make its runs not comparable
    client = NotebookClient(
        content, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    )
    client.execute(env=env)
    for cell in content.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            cell.outputs = _join_streams([_clean(output, work) for output in cell.outputs])
    return content


def _clean(output: Any, work: Path) -> Any:
    """Without colours and library logs, and with paths from the top of the repository."""
    if output.output_type == "stream":
        output.text = remove_machine(output.text, work)
    for kind, text in output.get("data", {}).items():
        output.data[kind] = remove_machine(text, work) if isinstance(text, str) else text
    return output


def remove_machine(text: str, work: Path) -> str:
    """Text without colours and library logs, its paths from the top of the repository, which is `work` or this one."""
    text = LIBRARY_LOG.sub("", COLOUR.sub("", text))
    for place in (work.resolve(), work, ROOT):
        text = text.replace(f"{place}/", "").replace(str(place), ".")
    return text


def _join_streams(outputs: list[Any]) -> list[Any]:
    """Lines of one stream that came in pieces are one output."""
    joined: list[Any] = []
    for output in outputs:
        if (
            joined
            and output.output_type == "stream" == joined[-1].output_type
            and output.name == joined[-1].name
        ):
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined
