"""A run whose folder is removed while it trains ends at its next write, and MLflow has all of its steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import mlflow

from tests.programs import find_python
from tests.trainer.ranks.test_launcher import ONE, environment


def test_it_is_noticed_at_the_next_write(tmp_path: Path, mlflow_server: str) -> None:
    more = {"TRAINER_STEPS": "100000", "TRAINER_PROFILE_STEPS": "0", "TRAINER_COMPARISON": "gone"}
    env = environment(tmp_path, **ONE, **more, MLFLOW_TRACKING_URI=mlflow_server)
    command = [find_python(), "-m", "trainer"]
    pipe = subprocess.PIPE
    folder = tmp_path / "gone" / "try"
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            deadline = time.monotonic() + 100
            while not ((folder / "metrics.sent").exists() and (folder / "metrics.sent").read_text() > "0"):
                assert running.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            with open(folder / "metrics.jsonl") as metrics:
                shutil.rmtree(folder)
                out, err = running.communicate(timeout=100)
                written = {line["step"] for line in map(json.loads, metrics) if line["kind"] == "train"}
        finally:
            running.kill()
    assert running.returncode == 13, out[-2000:] + err[-2000:]
    assert str(folder) in err and "Traceback" not in out + err
    client = mlflow.MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("gone")
    (run,) = client.search_runs([experiment.experiment_id])
    points = {point.step for point in client.get_metric_history(run.info.run_id, "loss")}
    assert run.info.status == "FAILED" and points == written == {*range(1, max(written) + 1)}
    assert not folder.exists()
