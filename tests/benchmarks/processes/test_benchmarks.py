"""The benchmarks run against today's trainer; their numbers are not judged here."""

import json
import subprocess
import sys

from stratlab_spec.memory.profiles import SHIPPED
from tests.codes import find_codes


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


def test_a_shipped_operations_file_that_is_not_what_is_counted_is_found_and_written(tmp_path):
    """One of twenty; the others are counted by hand, in six minutes."""
    shipped = SHIPPED / "vit_huge-zero3-8.json"
    copy = tmp_path / shipped.name
    content = json.loads(shipped.read_text())
    content["samples"][1]["peak_bytes"] -= 512
    copy.write_text(json.dumps(content))
    command = [sys.executable, "benchmarks/shipped_operations.py", copy.stem]
    away = ("--folder", str(tmp_path))
    for options, code, same in (
        ((), 0, True),
        (away, 1, False),
        ((*away, "--write"), 0, False),
        (away, 0, True),
    ):
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=200)
        assert done.returncode == code, done.stderr[-2000:]
        assert ("peak_bytes" not in done.stdout) is same, done.stdout
    done = subprocess.run([*command[:2], "nothing"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and find_codes(done.stderr) == ["SL-shipped-missing"]
