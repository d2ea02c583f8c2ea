"""A warm program is the program: its words and exit code, and it ends with its stand-in."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from stratlab.machine import free_port
from tests.programs import find_python
from tests.trainer.ranks.test_launcher import environment, start_pod


def test_it_says_and_ends_with_what_an_interpreter_does(tmp_path: Path) -> None:
    settings = {"TRAINER_STRATEGY": "ddpp"}
    ends = [
        subprocess.run(
            [python, "-m", "trainer"], env=environment(tmp_path, **settings), capture_output=True, text=True
        )
        for python in (find_python(), sys.executable)
    ]
    said = [(end.returncode, end.stdout, end.stderr) for end in ends]
    assert said[0] == said[1] and said[0][0] == 2 and said[0][2]


def test_it_ends_with_its_stand_in(tmp_path: Path) -> None:
    """Its pipe is closed by its last process."""
    pod = start_pod(tmp_path, 0, free_port(), TRAINER_WAIT_S="1000")
    ledger = tmp_path / "default" / "try" / "pods" / "try-worker-0.jsonl"
    deadline = time.monotonic() + 60
    while not ledger.exists():
        assert pod.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    pod.kill()
    pod.communicate(timeout=60)
    assert pod.returncode == -signal.SIGKILL
