"""The benchmarks run against today's trainer; their numbers are not judged here."""

import json
import subprocess
import sys


def test_the_host_tax_is_measured():
    command = [sys.executable, "benchmarks/host_tax.py", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["windows"] == 49 and report["bare_us_per_step"] > report["alone_us_per_step"] > 0


def test_the_stall_of_checkpoints_is_measured(tmp_path):
    """Its exit code judges the ratio, which says nothing of so small a state on a machine that does other things."""
    output = tmp_path / "found.json"
    command = [sys.executable, "benchmarks/checkpoint_stall.py"]
    command += ["--rounds", "2", "--layers", "2", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert output.exists(), done.stderr[-2000:]
    found = json.loads(output.read_text())
    counts = {kind: len(calls) for kind, calls in found["calls_s"].items()}
    assert counts == {"without": 0, "lab": 6, "peer": 6} and found["state_bytes"] > 2 * 12e6
