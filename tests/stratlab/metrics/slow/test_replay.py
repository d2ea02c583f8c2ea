"""`stratlab metrics replay`: the real trainer, a real server that is killed and not back before the run has ended."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mlflow

from stratlab.machine import free_port
from stratlab.tracking_server import run_server
from stratlab_spec.run_directory import RunDirectory
from tests.codes import find_codes
from tests.trainer.processes.test_mlflow import kill_server, stored, written


def replay(folder, *options):
    python = Path(sys.executable)
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    env.pop("MLFLOW_TRACKING_URI", None)
    command = [str(python), "-m", "stratlab", "metrics", "replay", str(folder), *options]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_server_that_came_back_too_late_gets_every_point_once(tmp_path):
    port, folder = free_port(), RunDirectory(tmp_path, "outages", "late")
    settings = {"run": "late", "comparison": "outages", "results": tmp_path, "model": "cnn", "image_size": 8}
    settings |= {"steps": 400, "log_every": 5, "profile_steps": 0}
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {f"TRAINER_{name.upper()}": str(value) for name, value in settings.items()}
    environment |= {"OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    with run_server(tmp_path / "mlflow", port):
        trainer = subprocess.Popen([sys.executable, "-m", "trainer"], env=environment)
        try:
            deadline = time.monotonic() + 240
            while not folder.sent.exists():
                assert time.monotonic() < deadline and trainer.poll() is None, "nothing was sent"
                time.sleep(0.05)
            kill_server(port)
            assert trainer.wait(400) == 0
        finally:
            trainer.terminate()
            trainer.wait(60)
    confirmed = int(folder.sent.read_text())
    assert 0 < confirmed < folder.metrics.stat().st_size, "else there would be nothing to replay"

    away = replay(folder.path)
    assert away.returncode == 1 and int(folder.sent.read_text()) == confirmed
    with run_server(tmp_path / "mlflow", port) as uri:
        client, run_id = mlflow.MlflowClient(uri), json.loads(folder.mlflow.read_text())["run_id"]
        assert client.get_run(run_id).info.status == "RUNNING" and stored(uri, run_id) != written(folder)
        done = replay(folder.path)
        assert done.returncode == 0, done.stderr
        assert uri in done.stdout and "FINISHED" in done.stdout
        assert stored(uri, run_id) == written(folder), "none lost, none doubled"
        ended = client.get_run(run_id).info.end_time
        again = replay(folder.path, "--tracking-uri", uri, "--json")
        assert again.returncode == 0
        told = json.loads(again.stdout)
        assert told["run"] == str(folder.path) and " 0 " in told["said"]
        assert stored(uri, run_id) == written(folder) and client.get_run(run_id).info.end_time == ended


def test_where_no_run_is_it_ends_with_3(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "notes.txt").touch()
    done = replay(tmp_path / "a" / "b", "--tracking-uri", "http://127.0.0.1:1")
    assert done.returncode == 3 and find_codes(done.stderr) == ["SL-metrics-no-run"]
