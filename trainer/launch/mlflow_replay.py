"""Send the points that the launcher could not send while MLflow was unreachable: the same lines in the same way.

A point that is sent twice is one point (trainer/launch/mlflow_sender.py). So a replay of a running run, or a second
replay, changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stratlab_spec import exit_codes as failures
from stratlab_spec.run_directory import RunDirectory, read_line, write_json
from stratlab_spec.settings.config import ConfigError
from trainer.distributed.machine import trust_given
from trainer.launch.mlflow_rest import Mlflow, MlflowError
from trainer.launch.mlflow_sender import (
    close_run,
    find_run,
    is_behind,
    mlflow_status,
    read_offset,
    send_new_lines,
)

URI = "MLFLOW_TRACKING_URI"


class Replayed(NamedTuple):
    """The result of a replay."""

    run_id: str
    lines: int
    """That MLflow did not have."""
    waiting_bytes: int
    """Size of a half-written last line."""
    closed: str
    """The new status of the MLflow run, if it was still RUNNING; "" = unchanged."""


def replay(folder: RunDirectory, uri: str, env: Mapping[str, str]) -> Replayed:
    """Send the lines after the confirmed offset, and close the MLflow run if the run has ended.

    Args:
        uri: of the server; a new server, or one whose store was lost or restored from an older copy, gets everything.
        env: with the login, as the launcher has it.

    Raises:
        MlflowError, OSError: the server is still unreachable; lines that it has confirmed stay confirmed.
    """
    mlflow = Mlflow(uri, env)
    before = _read_record(folder)
    record, is_known = find_run(folder, mlflow, uri)
    run_id = record["run_id"]
    start = read_offset(folder) if is_known or before.get("run_id") == run_id else 0
    if is_behind(folder, start, mlflow.read_latest(run_id)):
        start = 0
    end = send_new_lines(folder, mlflow, run_id, start)
    if not is_known:
        write_json(folder.mlflow, record)
    metrics = folder.metrics.read_bytes() if folder.metrics.exists() else b""
    sent = metrics[start:end].count(b"\n")
    return Replayed(run_id, sent, len(metrics) - end, _close(folder, mlflow, run_id))


def _close(folder: RunDirectory, mlflow: Mlflow, run_id: str) -> str:
    attempts = folder.read_attempts()
    if not attempts or attempts[-1]["event"] != "ended" or mlflow.read_status(run_id) != "RUNNING":
        return ""
    status = mlflow_status(attempts[-1]["exit_code"])
    close_run(folder, mlflow, run_id, status)
    return status


def main(arguments: list[str]) -> int:
    """Replay one run; return 1 if the server could not be reached or refused, 2 if the folder is not a run's."""
    parser = argparse.ArgumentParser(
        "python -m trainer.program replay",
        description="Send a run's missing metrics to MLflow.",
        epilog="example: python -m trainer.program replay results/runs/demo/ddp --tracking-uri http://mlflow:5000",
    )
    parser.add_argument("run", help="its folder: RESULTS/COMPARISON/RUN")
    parser.add_argument(
        "--tracking-uri", default=os.environ.get(URI, ""), help=f"{URI}, or the server that the run had"
    )
    options = parser.parse_args(arguments)
    path = Path(options.run).absolute()
    folder = RunDirectory(path.parent.parent, path.parent.name, path.name)
    if not folder.config.is_file():
        problem = f"is not a run that has started: {folder.config.name} is missing [SL-replay-no-run]"
        return _say(f"{options.run}: {problem}", 2)
    try:
        trust_given(os.environ)
    except ConfigError as wrong:
        return _say(str(wrong), 2)
    uri = options.tracking_uri.rstrip("/") or str(_read_record(folder).get("tracking_uri", ""))
    if not uri:
        return _say(
            f"{options.run}: has had no server; name one with --tracking-uri [SL-replay-no-server]", 2
        )
    try:
        done = replay(folder, uri, os.environ)
    except (MlflowError, OSError) as failure:
        left = folder.metrics.stat().st_size - read_offset(folder) if folder.metrics.exists() else 0
        return _say(f"{uri}: {failure}; {left} bytes of {folder.metrics} wait on [SL-replay-unsent]", 1)
    print(f"{options.run}: {done.lines} lines sent to {uri}, run {done.run_id}", end="")
    print(f"; it is {done.closed} now" if done.closed else "")
    if done.waiting_bytes:
        print(f"{folder.metrics}: its last line is half written and waits")
    return failures.DONE


def _read_record(folder: RunDirectory) -> dict[str, Any]:
    return read_line(folder.mlflow.read_bytes()) if folder.mlflow.exists() else {}


def _say(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return code
