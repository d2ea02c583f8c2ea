"""F11 to F13: the real server is away, late, slow or refuses; training does not notice, and nothing is lost."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stratlab.machine.processes import free_port
from stratlab.tracking.server import run_server
from tests.faults.pods import Pods, open_pods
from tests.faults.timed_loop import read_timing, write_timing
from tests.trainer.processes.test_sender import kill_server, stored, written

OUTAGE_S = 600.0
LONGEST_CALL_MS = 50.0
STEADY = {
    "TRAINER_MODEL": "resnet",
    "TRAINER_IMAGE_SIZE": "32",
    "TRAINER_GLOBAL_BATCH_SIZE": "64",
    "TRAINER_MICRO_BATCH_SIZE": "64",
    "TRAINER_CHECKPOINT_EVERY": "0",
    "TRAINER_LOG_EVERY": "1",
    "TRAINER_STEPS": "1000000",
}
"""Steps of some 100 ms: ten minutes of them are a few thousand lines, not millions."""


def count_differences(pods: Pods, uri: str) -> tuple[int, int]:
    """(points lost, points doubled), of what metrics.jsonl holds."""
    run_id = json.loads(pods.folder.mlflow.read_text())["run_id"]
    there, asked = stored(uri, run_id), written(pods.folder)
    return sum((asked - there).values()), sum((there - asked).values())


def wait_until_sent(pods: Pods, size: int, limit_s: float) -> float:
    """Seconds until the server has confirmed `size` bytes."""
    began = time.monotonic()
    while not pods.folder.sent.exists() or int(pods.folder.sent.read_text()) < size:
        assert time.monotonic() - began < limit_s, f"the backlog is still there\n{pods.said()}"
        time.sleep(0.2)
    return time.monotonic() - began


def finish(pods: Pods, uri: str, out: Path, record_property) -> None:
    """Stops the run, and holds MLflow to metrics.jsonl and the loop to its promise."""
    pods.send(0, signal.SIGTERM)
    assert pods.wait_for_end(0, 120) == 143, pods.said()
    lost, doubled = count_differences(pods, uri)
    calls, longest_ms = read_timing(out)
    for name, value in (
        ("points_lost", lost), ("points_doubled", doubled), ("longest_call_ms", round(longest_ms, 1)), ("calls", calls),
    ):  # fmt: skip
        record_property(name, value)
    assert (lost, doubled) == (0, 0)
    assert calls > 50 and longest_ms < LONGEST_CALL_MS


def test_ten_minutes_without_a_server(tmp_path: Path, record_property) -> None:
    port, out = free_port(), tmp_path / "timing.json"
    settings = {
        **STEADY,
        **write_timing(tmp_path / "site", out),
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}",
    }
    with open_pods(tmp_path, 1, 1, settings) as pods:
        with run_server(tmp_path / "mlflow", port):
            pods.start()
            pods.wait_for_step(3)
            wait_until_sent(pods, 1, 60)
            kill_server(port)
            began, before = time.monotonic(), len(pods.lines())
            time.sleep(OUTAGE_S)
            assert len(pods.lines()) > before + 100, f"the loop waited for the server\n{pods.said()}"
            missing = pods.folder.metrics.stat().st_size
            record_property("outage_s", round(time.monotonic() - began))
            with run_server(tmp_path / "mlflow", port) as uri:
                seconds = wait_until_sent(pods, missing, 300)
                record_property("seconds_to_recover", round(seconds, 1))
                finish(pods, uri, out, record_property)
                # the sender looks again once a minute at the latest; 100,000 points may take another
                points = sum(written(pods.folder).values())
                assert seconds < 60 + 60 * max(1.0, points / 1e5), f"{points} points"


def test_a_server_that_comes_late(tmp_path: Path, record_property) -> None:
    port, out = free_port(), tmp_path / "timing.json"
    settings = {
        **STEADY,
        **write_timing(tmp_path / "site", out),
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}",
    }
    with open_pods(tmp_path, 1, 1, settings) as pods:
        pods.start()
        pods.wait_for_step(60)
        assert not pods.folder.mlflow.exists()
        with run_server(tmp_path / "mlflow", port) as uri:
            wait_until_sent(pods, pods.folder.metrics.stat().st_size, 120)
            finish(pods, uri, out, record_property)


@contextmanager
def run_bad_server(behaviour: str) -> Iterator[str]:
    """The address of a server that answers every call with this status, or only after 5 s."""

    class Bad(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if behaviour == "slow":
                time.sleep(5)
            self.send_response(200 if behaviour == "slow" else int(behaviour))
            body = b"{}" if behaviour == "slow" else b'{"error_code": "X", "message": "the reason"}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bad)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("behaviour", ["slow", "500", "403", "429"])
def test_a_server_that_misbehaves(tmp_path: Path, behaviour: str, record_property) -> None:
    """A refusal at the start is no reason to train nothing; only its sentence differs."""
    out = tmp_path / "timing.json"
    with run_bad_server(behaviour) as uri:
        settings = {**STEADY, **write_timing(tmp_path / "site", out), "MLFLOW_TRACKING_URI": uri}
        with open_pods(tmp_path, 1, 1, settings | {"TRAINER_STEPS": "80"}) as pods:
            pods.start()
            assert pods.finish() == 0, pods.said()
            calls, longest_ms = read_timing(out)
            record_property("longest_call_ms", round(longest_ms, 1))
            assert calls > 50 and longest_ms < LONGEST_CALL_MS
            assert "metrics not sent" in pods.said() and (behaviour == "slow" or behaviour in pods.said())


def test_the_counting_of_points_sees_one_that_is_missing_and_one_that_is_there_twice() -> None:
    asked = Counter({("loss", 0.5, 1, 1): 1, ("loss", 0.25, 2, 2): 1})
    there = Counter({("loss", 0.5, 1, 1): 2})
    assert (sum((asked - there).values()), sum((there - asked).values())) == (1, 1)
