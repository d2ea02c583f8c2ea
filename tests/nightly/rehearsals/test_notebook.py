"""notebooks/two_t4.ipynb from its first cell to its last, on a machine without GPUs: the small form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.notebooks.cells import ROOT, TWO_T4, read_cells


def test_every_cell_in_its_order(tmp_path: Path) -> None:
    program = tmp_path / "cells.py"
    program.write_text("\n\n".join(read_cells(TWO_T4)))
    env = {**os.environ, "STRATLAB_OUT": str(tmp_path / "out")}
    done = subprocess.run(
        [sys.executable, program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    report = json.loads((tmp_path / "out" / "report" / "report.json").read_text())
    assert [run["strategy"] for run in report["runs"]] == ["ddp", "zero2", "zero3"]
    assert all(run["status"] == "finished" for run in report["runs"])
    assert report["fairness"]["verdict"] == "comparable"
