"""The real trainer, the real server, SIGKILL: the same points in metrics.jsonl and MLflow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import mlflow

from stratlab.machine.processes import free_port
from stratlab.tracking.server import run_server
from tests.programs import find_python
from tests.trainer.processes.test_sender import kill_server, stored, written
from trainer.record.run_directory import RunDirectory


def test_a_server_killed_in_the_middle_of_a_run_costs_nothing(tmp_path):
    """The real trainer, the real server, SIGKILL, 3 s of silence, the server again: no point lost, none doubled."""
    port, folder = free_port(), RunDirectory(tmp_path, "outages", "run")
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "OMP_NUM_THREADS": "1",
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}",
        "TRAINER_RUN": "run",
        "TRAINER_COMPARISON": "outages",
        "TRAINER_RESULTS": str(tmp_path),
        "TRAINER_MODEL": "cnn",
        "TRAINER_IMAGE_SIZE": "8",
        "TRAINER_STEPS": "100000",
        "TRAINER_LOG_EVERY": "5",
        "TRAINER_EVALUATE_EVERY": "200",
    }

    def wait_for(condition, text: str) -> None:
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline and trainer.poll() is None, text
            time.sleep(0.1)

    def size(path: Path) -> int:
        return path.stat().st_size if path.exists() else 0

    with run_server(tmp_path / "mlflow", port):
        trainer = subprocess.Popen([find_python(), "-m", "trainer"], env=environment)
        try:
            wait_for(folder.sent.exists, "nothing was sent")
            kill_server(port)
            silent_from = size(folder.metrics)
            time.sleep(3)
            assert size(folder.metrics) > silent_from, "the loop waited for the server"
            confirmed = int(folder.sent.read_text())
            with run_server(tmp_path / "mlflow", port) as uri:
                wait_for(lambda: int(folder.sent.read_text()) > confirmed + 1000, "nothing was sent again")
                trainer.send_signal(signal.SIGTERM)
                assert trainer.wait(60) == 143
                run_id = json.loads(folder.mlflow.read_text())["run_id"]
                assert int(folder.sent.read_text()) == size(folder.metrics)
                assert stored(uri, run_id) == written(folder)
                assert mlflow.MlflowClient(uri).get_run(run_id).info.status == "KILLED"
        finally:
            trainer.terminate()  # not kill: torch's launcher must end its ranks
            trainer.wait(60)
