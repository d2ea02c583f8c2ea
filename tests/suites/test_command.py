from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suites.command import run_command

CHILD = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"


def test_output_code_and_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sum(range(3_000_000)); sys.exit(3)"
    done = run_command([sys.executable, "-u", "-c", script], tmp_path / "raw" / "suite.log")
    assert (done.code, done.output) == (3, "out\nerr\n")
    assert (tmp_path / "raw" / "suite.log").read_text() == done.output == capsys.readouterr().out
    assert done.seconds > 0


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the tests were started in the background of a shell, which has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_when_it_is_stopped_everything_that_it_started_ends(tmp_path: Path) -> None:
    log = tmp_path / "suite.log"

    def interrupt() -> None:
        while not (log.exists() and log.read_text().strip()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", CHILD], log)
    child = int(log.read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "its child still runs"
        time.sleep(0.05)
