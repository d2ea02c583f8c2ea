"""A real MLflow server for every test that wants one; started once per session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.ranks import free_port

START_TIMEOUT_S = 120  # 7 s of CPU, 40 s seen on a busy machine


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server on loopback with sqlite and its own artifact folder."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"http://127.0.0.1:{free_port()}"
    environment = os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # 13 processes otherwise
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_MODEL_CATALOG_URI": "",  # downloaded otherwise
    }
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", uri.rpartition(":")[2]),
        *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
        *("--artifacts-destination", str(folder / "artifacts"), "--workers", "1"),
    ]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        _wait_for(uri, server, folder / "server.log")
        yield uri
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # the server and its worker, nobody else
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_for(uri: str, server: subprocess.Popen[bytes], log: os.PathLike[str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    with open(log) as file:
        pytest.fail(f"the MLflow server did not start:\n{file.read()[-3000:]}")
