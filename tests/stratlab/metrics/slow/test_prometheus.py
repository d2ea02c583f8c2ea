"""`stratlab metrics serve` as a program: it answers as Prometheus asks, and ends when told."""

import subprocess
import sys
import time
import urllib.request

from stratlab.machine import free_port
from tests.codes import find_codes
from tests.stratlab.example_run import build_run_dir

PATIENCE_S = 60


def get(url):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < deadline, url
            time.sleep(0.3)


def test_the_verb_answers_and_ends_when_told(tmp_path):
    build_run_dir(tmp_path / "runs/demo", "ddp", "ddp", device="cuda", status="unfinished")
    port = str(free_port())
    command = [sys.executable, "-m", "stratlab", "metrics", "serve"]
    server = subprocess.Popen([*command, tmp_path / "runs", "--port", port], stdout=subprocess.DEVNULL)
    try:
        text = get(f"http://127.0.0.1:{port}/metrics")
        assert 'stratlab_run_status{comparison="demo",run="ddp",status="at work"} 1.0' in text
        done = subprocess.run([*command, ".", "--port", port], capture_output=True, text=True)
        assert done.returncode == 2 and find_codes(done.stderr) == ["SL-metrics-address"]
        assert port in done.stderr
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 143
