"""A real Prometheus asks `stratlab metrics serve`, and every query of the dashboard has an answer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratlab.processes import free_port
from tests.codes import find_codes
from tests.stratlab.example_run import build_run_dir

PATIENCE_S = 60


def get(url: str) -> str:
    """Once somebody answers there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < deadline, url
            time.sleep(0.3)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[int]:
    """The port of the verb, over one run that is at work on two GPUs and one that has ended."""
    at_work = build_run_dir(tmp_path / "runs/demo", "ddp", "ddp", device="cuda", status="unfinished")
    build_run_dir(tmp_path / "runs/demo", "fsdp", "fsdp", device="cuda")
    line: dict[str, Any] = {"t": 1.7e9, "attempt": 1, "step": 30, "kind": "system"}
    for rank in range(2):
        line |= {f"rank{rank}_gpu_utilisation_pct": 97.0, f"rank{rank}_gpu_power_w": 540.0}
        line |= {f"rank{rank}_memory_allocated_gib": 1.5}
    with open(at_work / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    port = free_port()
    command = [sys.executable, "-m", "stratlab", "metrics", "serve", tmp_path / "runs", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 143


def test_the_verb_answers_and_ends_when_told(exporter):
    text = get(f"http://127.0.0.1:{exporter}/metrics")
    assert 'stratlab_run_status{comparison="demo",run="ddp",status="at work"} 1.0' in text
    taken = [sys.executable, "-m", "stratlab", "metrics", "serve", ".", "--port", str(exporter)]
    done = subprocess.run(taken, capture_output=True, text=True)
    assert done.returncode == 2 and find_codes(done.stderr) == ["SL-metrics-address"]
    assert str(exporter) in done.stderr
