"""Processes that a stage starts, and what is left of them; a file of foreseen memory is counted anew."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.gpu import foreseen
from benchmarks.gpu.own_run import OPERATIONS
from benchmarks.gpu.processes import run_command
from benchmarks.gpu.session import FILE
from stratlab.machine import MARK
from stratlab_spec.run_directory import read_lines

# a grandchild in a session of its own, deaf to SIGTERM, as torch's launcher makes them
TREE = """
import pathlib, signal, subprocess, sys, time
grandchild = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", grandchild], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(process.pid))
time.sleep(float(sys.argv[2]))
"""


def start_tree(folder, stays_s, seconds):
    command = [sys.executable, "-c", TREE, str(folder / "id"), str(stays_s)]
    code, _ = run_command(command, env=dict(os.environ), log=folder / "log", seconds=seconds)
    return code, int((folder / "id").read_text())


@pytest.mark.parametrize(("stays_s", "seconds", "code"), [(0.0, 60.0, 0), (600.0, 8.0, None)])
def test_a_command_leaves_nothing_behind(tmp_path, stays_s, seconds, code):
    found, grandchild = start_tree(tmp_path, stays_s, seconds)
    assert found == code
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_a_program_that_is_stopped_keeps_what_it_has_and_leaves_nothing(tmp_path):
    mark = f"test-{os.getpid()}"
    options = ["--device", "cpu", "--tiny", "--stages", "numerics,capacity", "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "benchmarks.gpu", *map(str, options), "--work", str(tmp_path / "work")]
    program = subprocess.Popen(command, env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"})
    results = tmp_path / "out" / FILE
    deadline = time.monotonic() + 240
    while len(read_lines(results)) < 2 and time.monotonic() < deadline:  # the beginning, and one result
        time.sleep(0.2)
    program.send_signal(signal.SIGTERM)
    assert program.wait(120) == 143
    lines = read_lines(results)
    # on a busy machine the first stage may have ended before the signal: then it is the second that is stopped
    *before, stopped = [line for line in lines if line["item"] == "end" and line["stage"] != "all"]
    assert stopped["status"] == "failed" and sum(end["done"] for end in [*before, stopped]) >= 1
    assert all(end["status"] == "passed" for end in before)
    assert bool(before) == (stopped["stage"] == "capacity")
    assert lines[-1]["stage"] == "all" and lines[-1]["stopped"]
    left = [p for p in psutil.process_iter() if _mark_of(p).startswith(mark)]
    assert left == []


def _mark_of(process):
    try:
        return process.environ().get(MARK, "")
    except (psutil.Error, OSError):
        return ""


def test_a_file_is_counted_as_it_lies_here(tmp_path, monkeypatch):
    monkeypatch.setattr(foreseen, "OPERATIONS", tmp_path)
    assert foreseen.count("resnet:ddp") == 0
    fresh, kept = (json.loads((folder / "resnet-ddp.json").read_text()) for folder in (tmp_path, OPERATIONS))
    assert fresh["samples"] == kept["samples"] and fresh["key"] == kept["key"]
