"""The benchmarks run against today's trainer; their numbers are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory import before
from benchmarks.memory.before import Pair
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
    assert counts == {"without": 0, "lab": 6, "peer": 6}
    assert found["state_bytes"] > 2 * 12e6


def test_a_shipped_operations_file_that_is_not_what_is_counted_is_found_and_written(tmp_path):
    """One of twenty; the others are counted by hand, in six minutes."""
    shipped = SHIPPED / "vit_huge-single-1.json"
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


SMALL = "model=vit_tiny dataset=digits precision=bf16 micro_batch_size=8 global_batch_size=64 strategy=fsdp"


def test_both_trees_count_and_the_page_tells_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(before, "PAGE", tmp_path / "before.md")
    pair = Pair("small", SMALL, added="activation_checkpointing=blocks", labels=10)
    monkeypatch.setattr(before, "GROUPS", {"1 blocks": (pair,), "2 other": (Pair("never", "model=none"),)})
    monkeypatch.setattr("sys.argv", ["before", str(before.HERE), "--only", "blocks"])
    assert before.main() == 0
    counted = json.loads((tmp_path / "before.json").read_text())["rows"]["small"]
    assert counted["after"]["gib"]["peak"] < counted["before"]["gib"]["peak"], "checkpointing holds less"
    page = (tmp_path / "before.md").read_text()
    assert "**small**" in page and "never" not in page
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert before.main() == 0 and not capsys.readouterr().out, "nothing is counted again"


def test_a_count_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "PAGE", tmp_path / "before.md")
    monkeypatch.setattr(before, "GROUPS", {"1 loss": (Pair("small", f"{SMALL} lr=-1"),)})
    monkeypatch.setattr("sys.argv", ["before", str(before.HERE)])
    assert before.main() == 1
