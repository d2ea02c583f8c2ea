"""A check that hangs; lacks that are really there: tests/nightly/trainer/test_environment_check.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.trainer.environment.planted import HANGS, KILLED, plant_in_ranks
from tests.trainer.environment.ranks.test_laptop import check, only


def test_a_rank_that_dies_is_named_and_not_the_one_that_is_ended_with_it(tmp_path: Path) -> None:
    planted = plant_in_ranks(tmp_path / "site", "1", KILLED)
    code, said = check(tmp_path, python=sys.executable, **planted)
    subject, seen = only(said)
    assert (code, subject) == (1, "ranks") and "rank 1 " in seen and "rank 0 " not in seen


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    started = tmp_path / "started"
    planted = plant_in_ranks(tmp_path / "site", "01", f"open({str(started)!r}, 'w').close(); {HANGS}")
    words = [sys.executable, "-m", "trainer.environment", "--results", str(tmp_path), "--processes", "2"]
    with subprocess.Popen(words, env={**os.environ, **planted}, stderr=subprocess.PIPE, text=True) as done:
        while not started.exists():
            assert done.poll() is None
            time.sleep(0.1)
        done.send_signal(signal.SIGINT)
        assert done.wait(60) == 143
