"""Runs a suite's command: its output goes to the terminal and into a log, its whole process group ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.suites.table import ROOT


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    output: str
    seconds: float


def run_command(command: Sequence[str], log: Path) -> Done:
    """Runs it in the project's folder. Ctrl-C ends the command and is passed on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    lines = []
    process = subprocess.Popen(
        list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout
    try:
        with open(log, "w") as file:
            for line in process.stdout:
                lines.append(line)
                file.write(line)
                file.flush()
                print(line, end="", flush=True)
        code = process.wait()
    finally:
        _end_group(process)
    return Done(code, "".join(lines), time.monotonic() - began)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Ends what is left of the command's own process group: first with SIGINT, so that it can take down what it
    started (a cluster, say)."""
    for number, seconds in ((signal.SIGINT, 60.0), (signal.SIGKILL, 10.0)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
