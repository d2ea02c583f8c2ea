"""How one measurement is written down."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.gpu.results import FILE, read_lines
from benchmarks.gpu.session import NotHere, Session


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def session_in(folder: Path, left_s: float = 100.0, **more) -> Session:
    return Session(
        "ab", "cpu", more.pop("tiny", False), str(folder), str(folder), time.time() + left_s, **more
    )


def fail(failure: Exception):
    raise failure


def test_facts_are_written_with_their_time(tmp_path):
    assert session_in(tmp_path).measure("loss", lambda batch: {"ms": batch}, 7)
    (line,) = read_lines(tmp_path / FILE)
    assert (line["stage"], line["item"], line["status"], line["ms"]) == ("ab", "loss", "done", 7)
    assert line["seconds"] >= 0


@pytest.mark.parametrize(
    ("failure", "status", "key", "text"),
    [
        (ValueError("bad shape"), "failed", "error", "ValueError: bad shape"),
        (OutOfMemoryError("2 GiB"), "out_of_memory", "error", "2 GiB"),
        (NotHere("flex: no backward"), "skipped", "reason", "not here: flex: no backward"),
    ],
)
def test_a_failure_is_its_own_and_the_next_goes_on(tmp_path, failure, status, key, text):
    session = session_in(tmp_path)
    assert not session.measure("first", fail, failure)
    assert session.measure("second", dict)
    first, second = read_lines(tmp_path / FILE)
    assert (first["status"], first[key], second["status"]) == (status, text, "done")
    assert ("where" in first) == (status == "failed")


def test_what_does_not_fit_any_more_is_skipped(tmp_path):
    assert not session_in(tmp_path, left_s=5).measure("long", dict, needs_s=10)
    (line,) = read_lines(tmp_path / FILE)
    assert (line["status"], line["reason"]) == ("skipped", "needs 10 s, 5 s left")
    assert session_in(tmp_path, left_s=5, tiny=True).measure("small", dict, needs_s=10)


def test_a_command_gets_what_is_left_but_not_more_than_its_most(tmp_path):
    assert session_in(tmp_path, left_s=50).within(240) == pytest.approx(49, abs=1)
    assert session_in(tmp_path, left_s=5000, scale=2).within(240) == 480


def test_a_session_goes_to_another_process_whole(tmp_path):
    session = session_in(tmp_path, scale=3)
    assert Session.from_json(session.to_json()) == session


def test_runs_that_were_asked_for_take_the_place_of_a_stage_s_own(tmp_path):
    assert session_in(tmp_path).choose(("a:single",)) == ("a:single",)
    asked = session_in(tmp_path, runs="b:ddp, c:zero2+compile,")
    assert asked.choose(("a:single",)) == ("b:ddp", "c:zero2+compile")
    assert Session.from_json(asked.to_json()).runs == asked.runs
