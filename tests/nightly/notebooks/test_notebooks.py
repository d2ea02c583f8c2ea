"""Every notebook that is kept with outputs, from its first cell to its last."""

import json
import time
from pathlib import Path

import pytest

from notebooks.execution import execute, list_notebooks
from tests.notebooks.cells import read_texts
from tests.suites.table import RAW

SECONDS: dict[str, float] = {}


@pytest.fixture(scope="module", autouse=True)
def facts() -> object:
    yield
    RAW.mkdir(parents=True, exist_ok=True)
    (RAW / "notebooks.json").write_text(json.dumps({"seconds": SECONDS}, indent=1))


@pytest.mark.parametrize("path", list_notebooks(), ids=lambda path: path.stem)
def test_it_runs_to_its_end(path: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    content = execute(path, tmp_path)
    SECONDS[path.stem] = round(time.monotonic() - began, 1)
    assert read_texts(content)
