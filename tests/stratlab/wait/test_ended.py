from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from stratlab.wait.ended import wait_for_run

STARTED = {"attempt": 1, "event": "started", "launcher": "a"}


def ended(code: int, attempt: int = 1, launcher: str = "a") -> dict[str, Any]:
    return {"attempt": attempt, "event": "ended", "exit_code": code, "launcher": launcher}


def write(run_dir: Path, *events: dict[str, Any], half: str = "") -> None:
    text = "".join(json.dumps(event) + "\n" for event in events)
    (run_dir / "attempts.jsonl").write_text(text + half)


def test_it_waits_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def train() -> None:
        time.sleep(0.3)
        run_dir.mkdir()
        write(run_dir, STARTED)
        time.sleep(0.3)
        write(run_dir, STARTED, ended(0))

    said: list[str] = []
    thread = threading.Thread(target=train)
    thread.start()
    outcome = wait_for_run(run_dir, deadline_s=20, poll_s=0.05, say=said.append)
    thread.join()
    assert outcome.ended
    assert [sentence.partition(": ")[2] for sentence in said] == [
        "no such folder yet",
        "attempt 1 is running",
    ]


def test_the_deadline_says_what_was_seen(tmp_path: Path) -> None:
    outcome = wait_for_run(tmp_path / "run", deadline_s=0.1, poll_s=0.05)
    assert (outcome.ended, outcome.sentence) == (False, f"{tmp_path / 'run'}: no such folder yet")


def test_silence_after_a_code_that_may_be_tried_again_is_an_end(tmp_path: Path) -> None:
    write(tmp_path, STARTED, ended(143))
    started = time.monotonic()
    outcome = wait_for_run(tmp_path, deadline_s=20, poll_s=0.05, quiet_s=0.5)
    assert outcome.ended and "nothing came after it" in outcome.sentence
    assert time.monotonic() - started >= 0.5


def test_anything_that_is_written_breaks_the_silence(tmp_path: Path) -> None:
    write(tmp_path, STARTED, ended(134))
    (tmp_path / "ranks").mkdir()
    stop = threading.Event()

    def log() -> None:
        while not stop.wait(0.1):
            with (tmp_path / "ranks" / "rank1.log").open("a") as file:
                file.write("still here\n")

    thread = threading.Thread(target=log)
    thread.start()
    outcome = wait_for_run(tmp_path, deadline_s=1.5, poll_s=0.05, quiet_s=0.5)
    stop.set()
    thread.join()
    assert not outcome.ended
