"""A real MLflow server: what is sent, resent and replayed, and what a run leaves as its last words."""

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mlflow
import psutil
import pytest

from stratlab.machine import free_port
from stratlab_spec.run_directory import RunDirectory, write_json
from tests.codes import find_codes, refuses
from trainer.launch.mlflow_rest import Mlflow, MlflowError
from trainer.launch.mlflow_sender import Sender, line_points, send_new_lines
from trainer.launch.tensorboard import main_of_replay, replay

Point = tuple[str, float, int, int]


def written(folder: RunDirectory) -> Counter[Point]:
    points: Counter[Point] = Counter()
    for line in folder.metrics.read_text().splitlines():
        for p in line_points(json.loads(line)):
            points[p["key"], float(p["value"]), p["timestamp"], p["step"]] += 1
    return points


def stored(uri: str, run_id: str) -> Counter[Point]:
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


def test_a_refusal_is_told_with_the_server_s_words(mlflow_server):
    with refuses(MlflowError, "SL-mlflow-refused", "404 "):
        Mlflow(mlflow_server, {}).end_run("nowhere", "FINISHED")


def kill_server(port: int) -> None:
    """SIGKILL for the server that this test started, and its worker."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended while we looked
            if child.status() != psutil.STATUS_ZOMBIE and str(port) in child.cmdline():
                for process in [*child.children(recursive=True), child]:
                    process.kill()


def test_a_run_gets_all_of_what_its_server_never_had_or_has_lost(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 1500)
    folder.append_attempt("ended", 1, "me", exit_code=0)
    write_json(folder.summary, {"forecast_memory_deviates": "logits"})
    done = replay(folder, mlflow_server, {})
    assert (done.lines, done.waiting_bytes, done.closed) == (1500, 0, "FINISHED")
    assert stored(mlflow_server, done.run_id) == written(folder)
    assert json.loads(folder.mlflow.read_text())["run_id"] == done.run_id
    run = mlflow.MlflowClient(mlflow_server).get_run(done.run_id)
    assert run.info.status == "FINISHED" and run.data.params["lr"] == "0.1"
    assert run.data.tags["forecast_memory_deviates"] == "logits"

    again = replay(folder, mlflow_server, {})
    assert (again.run_id, again.lines, again.closed) == (done.run_id, 0, "")
    append(folder, 1501, 1560)
    folder.sent.write_text(str(folder.metrics.stat().st_size))  # confirmed, and gone since
    assert replay(folder, mlflow_server, {}).lines == 1560
    assert stored(mlflow_server, done.run_id) == written(folder)


def test_what_cannot_be_sent_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder, away = open_folder(tmp_path, 2), f"http://127.0.0.1:{free_port()}"
    for arguments, code, told in (
        ([folder.path], 2, "SL-replay-no-server"),
        ([tmp_path, "--tracking-uri", away], 2, "SL-replay-no-run"),
        ([folder.path, "--tracking-uri", away], 1, "SL-replay-unsent"),
    ):
        assert main_of_replay([*map(str, arguments)]) == code
        said = capsys.readouterr().err
        assert find_codes(said) == [told]
    assert f" {folder.metrics.stat().st_size} bytes" in said and not folder.sent.exists()
    folder.mlflow.write_text(json.dumps({"tracking_uri": away, "experiment_id": "1", "run_id": "a"}))
    assert main_of_replay([str(folder.path)]) == 1, "the server that the run had is asked where none is named"


SAYS = """
import sys
from trainer.launch.ledger import drop_unwritten, end
print('line')
code = end(13, 'x')
drop_unwritten()
sys.exit(code)
"""


def run_on_full(*arguments: str, full: tuple[str, ...] = ("stdout", "stderr")) -> int:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as nowhere:
        out, err = (nowhere if name in full else subprocess.DEVNULL for name in ("stdout", "stderr"))
        return subprocess.run(
            [sys.executable, *arguments], env=env, stdout=out, stderr=err, timeout=60
        ).returncode


@pytest.mark.parametrize("full", [("stdout",), ("stdout", "stderr")])
def test_the_code_is_kept_where_its_words_cannot_be_written(full: tuple[str, ...]) -> None:
    assert run_on_full("-c", SAYS, full=full) == 13


def test_the_program_keeps_its_code_too() -> None:
    assert run_on_full("-m", "trainer", "--set", "lr=-1") == 2
