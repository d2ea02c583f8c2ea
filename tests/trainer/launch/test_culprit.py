from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.launch.culprit import find_culprit
from trainer.launch.ledger import Ledger
from trainer.record.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("ends", "code", "culprit"),
    [
        ({"w0": 134, "w1": 10}, 134, 10),
        ({"w0": 0, "w1": 12}, 12, 12),
        ({"w0": 134, "w1": 134}, 134, 134),
        ({"w0": 137, "w1": 12}, 137, 12),  # which of them came first is not known: this one would come again
        ({"w0": 143, "w1": 137}, 143, 137),
        ({"w0": 137, "w1": 143}, 143, 137),
        ({"w0": 0}, 1, 1),
        ({}, 143, 143),
    ],
)
def test_the_culprit_is_read_from_the_ledgers(
    tmp_path: Path, ends: dict[str, int], code: int, culprit: int
) -> None:
    folder = RunDirectory(tmp_path, "default", "try")
    for pod, ended in ends.items():
        ledger = Ledger(folder, pod)
        ledger.record_start("a")
        ledger.record_end("a", ended)
    assert find_culprit(folder, 0.0, code) == culprit


def ask(results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "TRAINER_RUN": "try", "TRAINER_RESULTS": str(results)}
    command = [sys.executable, "-m", "trainer.program", "culprit", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_the_command_prints_the_code_of_the_one_who_failed_since_then(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path, "default", "try")
    for pod, code in (("try-worker-0", 134), ("try-worker-1", 10)):
        ledger = Ledger(folder, pod)
        ledger.record_start("a")
        ledger.record_end("a", code)
    now = time.time()
    assert ask(tmp_path, "--since", str(now - 60), "--code", "134").stdout == "10\n"
    assert ask(tmp_path, "--since", str(now + 60), "--code", "137").stdout == "137\n"
    assert ask(tmp_path / "nothing", "--since", "0", "--code", "1").stdout == "1\n"
    refused = ask(tmp_path, "--since", "noon", "--code", "1")
    assert refused.returncode == 2 and "--since" in refused.stderr
    assert "example" in ask(tmp_path, "--help").stdout
