from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stratlab.wait import look, wait_for_run

STARTED = {"attempt": 1, "event": "started", "launcher": "a"}


def ended(code: int, attempt: int = 1, launcher: str = "a") -> dict[str, Any]:
    return {"attempt": attempt, "event": "ended", "exit_code": code, "launcher": launcher}


def write(run_dir: Path, *events: dict[str, Any], half: str = "") -> None:
    text = "".join(json.dumps(event) + "\n" for event in events)
    (run_dir / "attempts.jsonl").write_text(text + half)


@pytest.mark.parametrize(
    ("events", "is_ended", "sentence"),
    [
        ([STARTED], False, "attempt 1 is running"),
        ([STARTED, ended(0)], True, "attempt 1 ended with exit code 0"),
        ([STARTED, ended(10)], True, "attempt 1 ended with exit code 10"),
        ([STARTED, ended(143)], False, "exit code 143, which may be tried again"),
        ([STARTED, ended(143), STARTED | {"attempt": 2}], False, "attempt 2 is running"),
        ([STARTED, ended(143), STARTED | {"attempt": 2}, ended(0, 2)], True, "attempt 2 ended"),
        ([STARTED, ended(10), ended(134, launcher="b")], True, "exit code 10"),  # two nodes, one culprit
    ],
)
def test_what_attempts_say(
    tmp_path: Path, events: list[dict[str, Any]], is_ended: bool, sentence: str
) -> None:
    write(tmp_path, *events)
    outcome = look(tmp_path, quiet=False)
    assert outcome.ended is is_ended
    assert sentence in outcome.sentence


def test_a_half_written_event_does_not_count_yet(tmp_path: Path) -> None:
    write(tmp_path, STARTED, half=json.dumps(ended(0))[:-3])
    assert not look(tmp_path, quiet=False).ended


def test_complete_traces_and_a_summary_are_an_end(tmp_path: Path) -> None:
    write(tmp_path, STARTED)
    (tmp_path / "traces").mkdir()
    manifest = tmp_path / "traces" / "manifest.json"
    manifest.write_text('{"complete": false}')
    (tmp_path / "summary.json").write_text("{}")
    assert not look(tmp_path, quiet=False).ended
    manifest.write_text('{"complete": true}')
    assert look(tmp_path, quiet=False).ended
    (tmp_path / "summary.json").unlink()
    assert not look(tmp_path, quiet=False).ended


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


@pytest.mark.parametrize(
    "line", ["\0\0\0\0", '{"attempt": 1, "ev', "[]", '{"event": "ended"}', '{"event": 7}']
)
def test_what_is_no_event_is_passed_over(tmp_path: Path, line: str) -> None:
    """A node that crashed, or a full volume, leaves blocks of zeros and halves of lines."""
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "manifest.json").write_text(line)
    (tmp_path / "summary.json").write_text("{}")
    write(tmp_path, half=f"{line}\n{json.dumps(STARTED)}\n")
    assert look(tmp_path, quiet=False).sentence.endswith("attempt 1 is running")
    write(tmp_path, half=f"{json.dumps(STARTED)}\n{line}\n{json.dumps(ended(13))}\n")
    assert look(tmp_path, quiet=False).sentence.endswith("ended with exit code 13")
