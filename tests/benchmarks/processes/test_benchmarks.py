"""The benchmarks run against today's trainer; their numbers are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys

from stratlab.predict.operations_file import SHIPPED


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
    assert "ratio of the median stalls" in done.stdout, done.stderr[-2000:]
    found = json.loads(output.read_text())
    assert {kind: len(calls) for kind, calls in found["calls_s"].items()} == {
        "without": 0,
        "lab": 6,
        "peer": 6,
    }
    assert found["state_bytes"] > 2 * 12e6


def test_a_shipped_operations_file_that_is_not_what_is_counted_is_found_and_written(tmp_path):
    """One of twenty; the others are counted by hand, in six minutes."""
    shipped = SHIPPED / "vit_huge-single-1.json"
    copy = tmp_path / shipped.name
    content = json.loads(shipped.read_text())
    content["samples"][1]["peak_bytes"] -= 512
    copy.write_text(json.dumps(content))
    command = [sys.executable, "benchmarks/shipped_operations.py", copy.stem]
    for options, code, said in (
        ((), 0, "as counted"),
        (("--folder", str(tmp_path)), 1, "peak_bytes differs in 1 of 6 counts"),
        (("--folder", str(tmp_path), "--write"), 0, "peak_bytes differs in 1 of 6 counts"),
        (("--folder", str(tmp_path)), 0, "as counted"),
    ):
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=200)
        assert (done.returncode, done.stdout.strip()) == (code, f"1/1 {copy.stem}: {said}"), done.stderr[
            -2000:
        ]
    done = subprocess.run([*command[:2], "nothing"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and "holds no nothing" in done.stderr
