"""metrics.jsonl and MLflow: the same points, whatever happens to the server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from stratlab.machine.processes import free_port
from stratlab.tracking.server import run_server
from tests.programs import find_python
from tests.redirecting_server import run_redirect
from trainer.forecast.deviation import compare_forecast
from trainer.launch.mlflow_rest import Mlflow, MlflowError
from trainer.launch.sender import Sender, _flat, _tags, line_points, send_new_lines
from trainer.record.run_directory import RunDirectory, write_json

Point = tuple[str, float, int, int]


def written(folder: RunDirectory) -> Counter[Point]:
    """Every number of every line, counted."""
    points: Counter[Point] = Counter()
    for line in folder.metrics.read_text().splitlines():
        for p in line_points(json.loads(line)):
            points[p["key"], float(p["value"]), p["timestamp"], p["step"]] += 1
    return points


def stored(uri: str, run_id: str) -> Counter[Point]:
    """Every point that the server holds."""
    client = mlflow.MlflowClient(uri)
    keys = client.get_run(run_id).data.metrics
    history = (m for key in keys for m in client.get_metric_history(run_id, key))
    return Counter((m.key, m.value, m.timestamp, m.step) for m in history)


def open_folder(results: Path, lines: int, launcher: str = "me") -> RunDirectory:
    folder = RunDirectory(results, "outages", "run")
    folder.create()
    resolved = {"world_size": 1, "axes": {"dp_shard": 1}}
    provenance = {"git_sha": None, "image": "", "hosts": ["here"], "versions": {"torch": "2"}}
    content = {"run_uid": results.name, "run": "run", "comparison": "outages", "resolved": resolved}
    content |= {"config": {"strategy": "ddp", "lr": 0.1}, "provenance": provenance}
    write_json(folder.config, content)
    folder.append_attempt("started", 1, launcher)
    append(folder, 1, lines)
    return folder


def append(folder: RunDirectory, first: int, last: int) -> None:
    with open(folder.metrics, "a") as file:
        for step in range(first, last + 1):
            line = {"t": 1.7e9 + step, "attempt": 1, "step": step, "kind": "train", "loss": 1 / step}
            file.write(json.dumps(line | {"samples": 8, "profiled": False}) + "\n")


def test_points_are_the_numbers_of_a_line():
    line = {"t": 1.5, "attempt": 1, "step": 3, "kind": "train", "loss": 0.5, "skipped": 0, "profiled": True}
    assert line_points(line) == [
        {"key": "loss", "value": 0.5, "timestamp": 1500, "step": 3},
        {"key": "skipped", "value": 0, "timestamp": 1500, "step": 3},
    ]


def test_everything_arrives_once_also_when_sent_twice(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 1200)
    sender = Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})
    sender.start()
    sender.finish(0)
    run_id = json.loads(folder.mlflow.read_text())["run_id"]
    assert stored(mlflow_server, run_id) == written(folder) and len(written(folder)) == 2400

    folder.sent.unlink()  # as if the confirmations had been lost
    send_new_lines(folder, Mlflow(mlflow_server, {}), run_id)
    assert stored(mlflow_server, run_id) == written(folder)

    run = mlflow.MlflowClient(mlflow_server).get_run(run_id)
    assert run.info.status == "FINISHED" and run.data.params["lr"] == "0.1"
    assert run.data.tags["strategy"] == "ddp" and run.info.run_name == "run"


FORECAST = {
    "peak_gib": 10.0,
    "workspace_gib": 0.0,
    "at_most": False,
    "update_gib": {"parameters": 2.0, "gradients": 2.0},
}
RANK = {"peak_gib": 12.0, "state_gib": {"parameters": 2.0, "gradients": 4.0}, "kept_gib": None}


def compare(measured_gib: float) -> dict[str, Any]:
    """What the summary says of a forecast of 10 GiB, with gradients that are held twice."""
    return compare_forecast(FORECAST, measured_gib, [{"training_memory": RANK | {"peak_gib": measured_gib}}])


@pytest.mark.parametrize(("measured_gib", "mark"), [(12.0, "gradients"), (10.1, "none")])
def test_memory_outside_of_its_band_is_a_tag_of_the_run(mlflow_server, tmp_path, measured_gib, mark):
    folder = open_folder(tmp_path, 2)
    sender = Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})
    sender.start()
    write_json(folder.summary, {"steps": 2, **compare(measured_gib)})
    sender.finish(0)
    record = json.loads(folder.mlflow.read_text())
    client = mlflow.MlflowClient(mlflow_server)
    run = client.get_run(record["run_id"])
    assert run.data.tags["forecast_memory_deviates"] == mark and run.info.status == "FINISHED"
    assert run.data.tags["strategy"] == "ddp"
    marked = client.search_runs([record["experiment_id"]], "tags.forecast_memory_deviates = 'gradients'")
    assert (run.info.run_id in [one.info.run_id for one in marked]) == (mark == "gradients")


@pytest.mark.parametrize("summary", [None, {"steps": 2}, {"forecast_memory_gib": 10.0}])
def test_where_nobody_could_tell_there_is_no_such_tag(mlflow_server, tmp_path, summary):
    folder = open_folder(tmp_path, 2)
    sender = Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})
    sender.start()
    if summary is not None:
        write_json(folder.summary, summary)
    sender.finish(0)
    run = mlflow.MlflowClient(mlflow_server).get_run(json.loads(folder.mlflow.read_text())["run_id"])
    assert "forecast_memory_deviates" not in run.data.tags and run.info.status == "FINISHED"


def test_half_a_line_waits_until_it_is_whole(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 3)
    sender = Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})
    assert sender._try_send()
    with open(folder.metrics, "a") as file:
        file.write('{"t": 1.8e9, "attempt": 1, "step": 4, "kind": "train", "lo')
    assert sender._try_send() and int(folder.sent.read_text()) < folder.metrics.stat().st_size
    with open(folder.metrics, "a") as file:
        file.write('ss": 0.25}\n')
    assert sender._try_send()
    assert stored(mlflow_server, json.loads(folder.mlflow.read_text())["run_id"]) == written(folder)


def test_a_second_attempt_continues_the_same_mlflow_run(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 3)
    first = Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})
    first.start()
    first.finish(143)
    run_id = json.loads(folder.mlflow.read_text())["run_id"]
    client = mlflow.MlflowClient(mlflow_server)
    assert client.get_run(run_id).info.status == "KILLED"
    folder.append_attempt("started", 2, "other")
    append(folder, 4, 6)
    second = Sender(folder, "other", {"MLFLOW_TRACKING_URI": mlflow_server})
    second.start()
    second.finish(0)
    assert json.loads(folder.mlflow.read_text())["run_id"] == run_id
    assert client.get_run(run_id).info.status == "FINISHED" and stored(mlflow_server, run_id) == written(
        folder
    )


def test_the_run_is_created_once_even_if_its_record_is_lost(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 3)
    assert Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})._try_send()
    run_id = json.loads(folder.mlflow.read_text())["run_id"]
    folder.mlflow.unlink()
    folder.sent.unlink()
    assert Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})._try_send()
    assert json.loads(folder.mlflow.read_text())["run_id"] == run_id
    assert stored(mlflow_server, run_id) == written(folder)


def test_another_launcher_does_not_send(tmp_path):
    folder = open_folder(tmp_path, 3, launcher="the one with rank 0")
    sender = Sender(folder, "me", {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"})
    began = time.monotonic()
    sender.start()
    sender.finish(0)
    assert time.monotonic() - began < 5 and not folder.sent.exists()


def test_after_a_redirect_the_named_server_takes_everything(mlflow_server, tmp_path, caplog):
    folder = open_folder(tmp_path, 3)
    with run_redirect(mlflow_server) as uri:
        assert not Sender(folder, "me", {"MLFLOW_TRACKING_URI": uri})._try_send()
    assert f"set run.mlflow.trackingUri to {mlflow_server};" in caplog.text and not folder.mlflow.exists()
    assert Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})._try_send()
    assert stored(mlflow_server, json.loads(folder.mlflow.read_text())["run_id"]) == written(folder)


def test_a_refusal_is_told_with_the_server_s_words(mlflow_server):
    with pytest.raises(MlflowError, match="404 .*nowhere"):
        Mlflow(mlflow_server, {}).end_run("nowhere", "FINISHED")


def kill_server(port: int) -> None:
    """SIGKILL for the server that this test started, and its worker."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended while we looked
            if child.status() != psutil.STATUS_ZOMBIE and str(port) in child.cmdline():
                for process in [*child.children(recursive=True), child]:
                    process.kill()


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


def test_a_layout_becomes_params_and_a_degenerate_one_a_tag():
    layout = {
        "name": "pp2", "reason": "2D on 2 processes", "dimensions": 2, "degenerate": True,
        "sequence_parallel": False, "missing": ["data"],
    }  # fmt: skip
    resolved = {"world_size": 2, "axes": {"pp": 2, "tp": 1}, "layout": layout}
    asked = {"strategy": "nd", "layout": "auto", "pp": 0, "sequence_parallel": "auto"}
    params = {**asked, **_flat(resolved)}
    assert (params["layout"], params["pp"], params["missing_dimensions"]) == ("pp2", 2, "data")
    assert params["sequence_parallel"] is False and params["degenerate"] is True
    provenance = {"git_sha": "", "image": "", "hosts": [], "versions": {}}
    tags = _tags({"config": asked, "resolved": resolved, "provenance": provenance})
    assert tags["degenerate"] == "true"
    plain = _tags({"config": asked, "resolved": {"axes": {}}, "provenance": provenance})
    assert "degenerate" not in plain and "layout" not in _flat({"axes": {}})
