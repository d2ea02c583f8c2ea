"""Run a real MLflow server on loopback, with its store in one folder.

<folder>/mlflow.db    runs and metrics (SQLite)      <folder>/artifacts    files
<folder>/server.log   output of the server
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stratlab import NothingThere, UserError
from stratlab.machine import GrowingWait, Processes, build_machine_env, free_port, say_full, tail
from stratlab.run_directory.files import check_folder
from stratlab.tracking import find_places

HOST = "127.0.0.1"
START_DEADLINE_S = 120.0
DISK_FULL = ("database or disk is full", "No space left on device")

# Job execution starts a dozen processes and answers unauthenticated requests (CVE-2026-0545).
SERVER_ENV = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_SERVER_ALLOWED_HOSTS": "127.0.0.1,127.0.0.1:*,localhost,localhost:*",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_MODEL_CATALOG_URI": "",
}


class ServerFailed(Exception):
    """Report that the server ended, or did not answer in time; the text ends with the last lines of its own log."""


@contextmanager
def run_server(
    folder: Path, port: int | None = None, *, progress: Callable[[str], None] = lambda text: None
) -> Iterator[str]:
    """Yield the tracking URI of a server that answers; stop the server on exit.

    Args:
        folder: the store; created if it does not exist.
        port: on loopback; a free one when None.
        progress: receives a sentence after 5 s while the server starts, then ever more rarely.

    Raises:
        UserError: the port is in use.
        OSError: ENOSPC, the volume of `folder` is full.
        ServerFailed: it ended or did not answer within 120 s.
    """
    with _running_server(folder, port, progress) as (uri, _):
        yield uri


def serve_store(folder: Path, port: int | None, say: Callable[[str], None]) -> int:
    """Serve a finished store until the server ends or an exception is raised; return its exit code.

    Raises:
        NothingThere: `folder` holds no store.
        UserError: it is a file, or the port is in use.
        ServerFailed: it ended or did not answer within 120 s.
    """
    check_folder(folder, "the --mlflow folder of a rehearsal")
    if not (folder / "mlflow.db").is_file():
        raise NothingThere(
            f"{folder}: mlflow.db is missing; use the --mlflow folder of a rehearsal [SL-mlflow-store-absent]"
        )
    with _running_server(folder, port, say) as (uri, process):
        say(f"MLflow is ready: {uri} (Ctrl-C ends it)")
        for experiment, place in find_places(uri):
            say(f"charts of {experiment}: {uri}/{place}")
        return process.wait()


@contextmanager
def _running_server(
    folder: Path, port: int | None, say: Callable[[str], None]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    folder = folder.absolute()
    port = free_port() if port is None else port
    _check_free(port)
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")]
    env = build_machine_env(os.environ) | SERVER_ENV | {"HOME": str(folder)}
    processes = Processes()
    try:
        process = processes.start(command, env, folder / "server.log", folder=str(folder))
        uri = f"http://{HOST}:{port}"
        _wait_until_healthy(uri, process, folder / "server.log", say)
        yield uri, process
    finally:
        processes.stop()


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as failure:
            raise UserError(
                f"--port {port}: cannot be used ({failure.strerror}) [SL-port-taken]"
            ) from failure


def _wait_until_healthy(
    uri: str, process: subprocess.Popen[bytes], log: Path, say: Callable[[str], None]
) -> None:
    started = time.monotonic()
    patience = GrowingWait(started)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback: never through a proxy
    while True:
        if process.poll() is not None:
            raise _explain_end(process.returncode, log)
        try:
            with direct.open(f"{uri}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            waited_s = time.monotonic() - started
        if waited_s > START_DEADLINE_S:
            raise ServerFailed(
                f"the MLflow server did not answer within {START_DEADLINE_S:.0f} s, {log} [SL-mlflow-silent]:\n"
                f"{tail(log)}"
            )
        if patience.is_over(time.monotonic()):
            say(f"starting the MLflow server, {waited_s:.0f} s")
        time.sleep(0.2)


def _explain_end(code: int, log: Path) -> Exception:
    """Explain the server's end. On a full volume the log may be empty, and SQLite's error is not helpful."""
    last = tail(log)
    words = say_full(log.parent)
    if not words and any(said in last for said in DISK_FULL):
        words = f"the volume of {log.parent} is full"
    if words:
        return OSError(errno.ENOSPC, f"the MLflow server ended with {code}, {words} [SL-mlflow-volume-full]")
    return ServerFailed(f"the MLflow server ended with {code}, {log} [SL-mlflow-ended]:\n{last}")
