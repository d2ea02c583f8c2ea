"""Processes of a stage, with all that they start in turn: after its end none is left."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from stratlab.machine import MARK, Processes

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class Ended(BaseException):  # so that a measurement does not treat it as its own failure
    """SIGTERM or SIGINT to this program."""


class NestedProcesses(Processes):
    """The same as `Processes`, with members' children that have a mark of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = f"{os.environ.get(MARK, '')}/{self.mark}"

    def _is_member(self, process: psutil.Process) -> bool:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            return alive and process.environ().get(MARK, "").startswith(self.mark)
        except (psutil.Error, OSError):
            return False


def run_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    seconds: float,
    folder: Path | None = None,
    grace_s: float = 4.0,
) -> tuple[int | None, float]:
    """Return (exit code, or None if the time was over; seconds). Its whole process tree has then ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    processes, began = NestedProcesses(), time.monotonic()
    try:
        process = processes.start(command, env, log, folder=str(folder) if folder else None)
        code: int | None = process.wait(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        processes.stop(grace_s)
    return code, time.monotonic() - began


def raise_on_signals() -> None:
    """Turn SIGTERM and SIGINT into `Ended`, so that started processes are ended on the way out."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Ended

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def end_with_parent() -> None:
    """Send SIGTERM to this process when its parent ends, also after a SIGKILL."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM)


def read_tail(path: Path, lines: int = 25, width: int = 300) -> list[str]:
    """Return the last lines of a log, cut to a width."""
    try:
        return [line[:width] for line in path.read_text(errors="replace").splitlines()[-lines:]]
    except OSError:
        return []


def ask(*command: str, **options: Any) -> str:
    """Return the output of a short command, or why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, **options)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return type(failure).__name__
    return (done.stdout or done.stderr).strip()[:1500]
