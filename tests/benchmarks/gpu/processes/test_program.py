"""Every stage's code, on a CPU and in small: `make gpu DEVICE=cpu TINY=1`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.gpu.results import END, FILE, find_oversize, read_lines
from benchmarks.gpu.stages import STAGES


@pytest.mark.slow
def test_every_stage_executes_something(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny"]
    command += ["--out", str(out), "--work", str(tmp_path / "work")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ends = {line["stage"]: line for line in read_lines(out / FILE) if line["item"] == END}
    for stage in STAGES:
        assert ends[stage.name]["done"] > 0 and ends[stage.name]["status"] == "passed", ends[stage.name]
    assert find_oversize(out) == []
    read = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.read", str(out)], capture_output=True, text=True
    )
    assert read.returncode == 0 and all(stage.name in read.stdout for stage in STAGES)
