"""Lacks that are really there, on one machine: each planted alone, and named alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.codes import find_codes
from tests.trainer.environment.planted import HANGS, SHIFTED, mounted, plant_in_ranks, slow_loopback
from tests.trainer.environment.ranks.test_laptop import check, only


def test_little_shared_memory_and_none(tmp_path: Path) -> None:
    for size, told in (("64m", "SL-shm-small"), ("1m", "SL-shm-unwritable")):
        with mounted(Path("/dev/shm"), size) as prefix:
            code, said = check(tmp_path, prefix=prefix)
        subject, seen = only(said)
        assert (code, subject, find_codes(seen)) == (1, "shared memory", [told])


def test_a_full_volume(tmp_path: Path) -> None:
    with mounted(tmp_path, "8m") as prefix:
        code, said = check(tmp_path, prefix=prefix)
    subject, seen = only(said)
    assert (code, subject, find_codes(seen)) == (1, "results volume", ["SL-volume-unwritable"])


def test_a_slow_link(tmp_path: Path) -> None:
    with slow_loopback(f"stratlab-check-{os.getpid()}") as prefix:
        code, said = check(tmp_path, prefix=prefix, python=sys.executable)
    subject, seen = only(said)
    assert (code, subject, find_codes(seen)) == (1, "all-reduce", ["SL-link-slow"])
    assert " 1 MiB" in seen and "16 MiB" not in seen, "what would take a minute is left out"


def test_a_wrong_clock(tmp_path: Path) -> None:
    """Both ranks have it, the files of the volume have not. What Python calls the time is shifted, no clock is set."""
    planted = plant_in_ranks(tmp_path / "site", "01", SHIFTED.format(seconds=-3600))
    code, said = check(tmp_path, python=sys.executable, **planted)
    subject, seen = only(said)
    assert (code, subject, find_codes(seen)) == (1, "clock", ["SL-clock-of-volume"]) and "3600.0 s" in seen


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    planted = plant_in_ranks(tmp_path / "site", "01", HANGS)
    words = [sys.executable, "-m", "trainer.environment", "--results", str(tmp_path), "--processes", "2"]
    with subprocess.Popen(words, env={**os.environ, **planted}, stderr=subprocess.PIPE, text=True) as done:
        time.sleep(5)
        done.send_signal(signal.SIGINT)
        assert done.wait(60) == 143
