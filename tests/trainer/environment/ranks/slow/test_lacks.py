"""A check that hangs; lacks that are really there: tests/nightly/trainer/test_environment_check.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.trainer.environment.planted import HANGS, plant_in_ranks


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    planted = plant_in_ranks(tmp_path / "site", "01", HANGS)
    words = [sys.executable, "-m", "trainer.environment", "--results", str(tmp_path), "--processes", "2"]
    with subprocess.Popen(words, env={**os.environ, **planted}, stderr=subprocess.PIPE, text=True) as done:
        time.sleep(5)
        done.send_signal(signal.SIGINT)
        assert done.wait(60) == 143
