"""The files alone: when a run has ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from stratlab.wait.ended import wait_for_run
from tests.stratlab.wait.waiting import write_attempt


def test_it_waits_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert not wait_for_run(run_dir, deadline_s=0.1, poll_s=0.05).ended
    said: list[str] = []

    def train() -> None:
        for code in (None, 0):
            time.sleep(0.3)
            write_attempt(run_dir, code)

    thread = threading.Thread(target=train)
    thread.start()
    assert wait_for_run(run_dir, deadline_s=20, poll_s=0.05, say=said.append).ended
    thread.join()
    assert len(said) == 2, "a sentence for each change"


def test_silence_after_a_code_that_may_be_tried_again_is_an_end(tmp_path: Path) -> None:
    write_attempt(tmp_path, 143)
    started = time.monotonic()
    assert wait_for_run(tmp_path, deadline_s=20, poll_s=0.05, quiet_s=0.5).ended
    assert time.monotonic() - started >= 0.5


def test_anything_that_is_written_breaks_the_silence(tmp_path: Path) -> None:
    write_attempt(tmp_path, 134)
    (tmp_path / "ranks").mkdir()
    stop = threading.Event()

    def log() -> None:
        while not stop.wait(0.1):
            with (tmp_path / "ranks" / "rank1.log").open("a") as file:
                file.write("still here\n")

    thread = threading.Thread(target=log)
    thread.start()
    outcome = wait_for_run(tmp_path, deadline_s=1.2, poll_s=0.05, quiet_s=0.5)
    stop.set()
    thread.join()
    assert not outcome.ended
