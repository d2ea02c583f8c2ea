"""Ctrl-C in the middle of a rehearsal."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.stratlab.rehearse.conftest import write_chart


@pytest.fixture
def swept(tmp_path):
    yield
    for process in named(str(tmp_path)):
        os.kill(process, signal.SIGKILL)


@pytest.mark.usefixtures("swept")
def test_an_interrupted_rehearsal_leaves_no_process(tmp_path):
    chart = write_chart(tmp_path / "tiny")
    store, run_dir = tmp_path / "mlflow", tmp_path / "runs" / "demo" / "tiny"
    options = ["--results", str(tmp_path / "runs"), "--set", "run.config.fault=hang"]
    rehearsal = start("rehearse", str(chart), *options)
    wait_until(rehearsal, lambda: (run_dir / "hanging").exists())
    environ = json.loads((run_dir / "config.json").read_text())["environ"]
    mark = environ["STRATLAB_REHEARSAL"]
    assert len(marked(mark)) == 2, "the script, and its worker in a session of its own"
    assert len(named(str(store))) >= 1, "the server"
    with urllib.request.urlopen(environ["MLFLOW_TRACKING_URI"] + "/health", timeout=5) as reply:
        assert reply.status == 200
    os.killpg(rehearsal.pid, signal.SIGINT)  # as a terminal does
    output, _ = rehearsal.communicate(timeout=30)
    assert "KeyboardInterrupt" not in (run_dir.parent / ".logs" / "tiny" / "node0.log").read_text()
    assert rehearsal.returncode == 130 and "SIGINT" in output and "\x1b" not in output
    assert marked(mark) == named(str(store)) == []


def start(*arguments):
    command = [sys.executable, "-m", "stratlab", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_until(process, condition):
    deadline = time.monotonic() + 240
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(process.communicate()[0])
        time.sleep(0.1)


def marked(mark):
    """Processes that carry the mark, read from /proc directly."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"STRATLAB_REHEARSAL={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def named(text):
    """Other processes with `text` in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(text in part for part in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
