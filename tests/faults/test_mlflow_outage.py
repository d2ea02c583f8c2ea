"""F11 to F13: the real server is away, late, slow or refuses; training does not notice, and nothing is lost."""

import json
import signal
import socket
import time
from pathlib import Path

from stratlab.processes import free_port
from stratlab.tracking_server import run_server
from tests.faults.pods import Pods, open_pods
from tests.trainer.processes.test_mlflow import kill_server, stored, written

OUTAGE_S = 600.0
LONGEST_CALL_MS = 50.0
STEADY = {
    "TRAINER_MODEL": "resnet", "TRAINER_IMAGE_SIZE": "32", "TRAINER_GLOBAL_BATCH_SIZE": "64",
    "TRAINER_MICRO_BATCH_SIZE": "64", "TRAINER_CHECKPOINT_EVERY": "0", "TRAINER_LOG_EVERY": "1",
    "TRAINER_STEPS": "1000000",
}  # fmt: skip
"""Steps of some 100 ms: ten minutes of them are a few thousand lines, not millions."""


# How long the loop is held up by tracking. A call counts only where the system has not taken the processor away from
# the thread meanwhile: on two shared cores any line of Python may take 50 ms.
SITE = """
import sys
if "trainer.worker" in sys.orig_argv:
    import atexit, json, resource, time
    from trainer.metrics.tracking import Recorder
    calls = []
    def write():
        with open({out!r}, "w") as file:
            json.dump(dict(calls=len(calls), longest_ms=max(calls, default=0.0)), file)
    def timed(name):
        whole = getattr(Recorder, name)
        def call(*given, **named):
            switched = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
            began = time.perf_counter()
            try:
                return whole(*given, **named)
            finally:
                took = (time.perf_counter() - began) * 1e3
                if resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw == switched:
                    calls.append(took)
                if len(calls) % 20 == 0:
                    write()
        setattr(Recorder, name, call)
    for name in ("record_step", "flush", "record"):
        timed(name)
    atexit.register(write)
"""


def time_calls(folder: Path, uri: str) -> dict[str, str]:
    """Settings of a run whose rank times its own calls; one rank, because all of them write to the same file."""
    (folder / "site").mkdir()
    script = SITE.replace("{out!r}", repr(str(folder / "timing.json")))
    (folder / "site" / "sitecustomize.py").write_text(script)
    return STEADY | {"PYTHONPATH": str(folder / "site"), "MLFLOW_TRACKING_URI": uri}


def check_calls(folder: Path, record_property) -> None:
    found = json.loads((folder / "timing.json").read_text())
    record_property("longest_call_ms", round(found["longest_ms"], 1))
    assert found["calls"] > 50 and found["longest_ms"] < LONGEST_CALL_MS


def count_differences(pods: Pods, uri: str) -> tuple[int, int]:
    there, asked = stored(uri, json.loads(pods.folder.mlflow.read_text())["run_id"]), written(pods.folder)
    return sum((asked - there).values()), sum((there - asked).values())


def wait_until_sent(pods: Pods, size: int, limit_s: float) -> float:
    began = time.monotonic()
    while not pods.folder.sent.exists() or int(pods.folder.sent.read_text()) < size:
        assert time.monotonic() - began < limit_s, f"the backlog is still there\n{pods.said()}"
        time.sleep(0.2)
    return time.monotonic() - began


def finish(pods: Pods, uri: str, folder: Path, record_property) -> None:
    """Stops the run, and holds MLflow to metrics.jsonl and the loop to its promise."""
    pods.send(0, signal.SIGTERM)
    assert pods.wait_for_end(0, 120) == 143, pods.said()
    lost, doubled = count_differences(pods, uri)
    record_property("points_lost", lost)
    record_property("points_doubled", doubled)
    assert (lost, doubled) == (0, 0)
    check_calls(folder, record_property)


def test_ten_minutes_without_a_server(tmp_path: Path, record_property) -> None:
    port = free_port()
    with open_pods(tmp_path, 1, 1, time_calls(tmp_path, f"http://127.0.0.1:{port}")) as pods:
        with run_server(tmp_path / "mlflow", port):
            pods.start()
            pods.wait_for_step(3)
            wait_until_sent(pods, 1, 60)
            kill_server(port)
            before = len(pods.lines())
            time.sleep(OUTAGE_S)
            assert len(pods.lines()) > before + 100, f"the loop waited for the server\n{pods.said()}"
            missing = pods.folder.metrics.stat().st_size
            with run_server(tmp_path / "mlflow", port) as uri:
                seconds = wait_until_sent(pods, missing, 300)
                record_property("seconds_to_recover", round(seconds, 1))
                finish(pods, uri, tmp_path, record_property)
                # the sender looks again once a minute at the latest; 100,000 points may take another
                points = sum(written(pods.folder).values())
                assert seconds < 60 + 60 * max(1.0, points / 1e5), f"{points} points"


def test_a_server_that_comes_late(tmp_path: Path, record_property) -> None:
    port = free_port()
    with open_pods(tmp_path, 1, 1, time_calls(tmp_path, f"http://127.0.0.1:{port}")) as pods:
        pods.start()
        pods.wait_for_step(60)
        assert not pods.folder.mlflow.exists()
        with run_server(tmp_path / "mlflow", port) as uri:
            wait_until_sent(pods, pods.folder.metrics.stat().st_size, 120)
            finish(pods, uri, tmp_path, record_property)


def test_a_server_that_does_not_answer(tmp_path: Path, record_property) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = time_calls(tmp_path, f"http://127.0.0.1:{server.getsockname()[1]}")
        with open_pods(tmp_path, 1, 1, settings | {"TRAINER_STEPS": "80"}) as pods:
            pods.start()
            assert pods.finish() == 0, pods.said()
            check_calls(tmp_path, record_property)
