"""The benchmarks run against today's trainer; their numbers are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys


def test_the_host_tax_is_measured():
    command = [sys.executable, "benchmarks/host_tax.py", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["windows"] == 49 and report["bare_us_per_step"] > report["alone_us_per_step"] > 0
