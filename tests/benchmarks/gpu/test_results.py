"""The lines on disk, and when a stage has passed."""

from __future__ import annotations

import math
import os

import pytest

from benchmarks.gpu.results import MOST_BYTES, append_line, build_end, clean, find_oversize, read_lines

DONE, FAILED = {"status": "done"}, {"status": "failed"}


def end_of(*lines, **more):
    return build_end("ab", lines, **{"exit_code": 0, "seconds": 1.0, "budget_s": 2.0, **more})


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "results.jsonl"
    append_line(path, {"stage": "ab", "item": "loss", "ms": 1.23456789, "error": math.nan, "sizes": (1, 2)})
    append_line(path, {"stage": "ab", "item": "end", "status": "passed"})
    first, second = read_lines(path)
    assert first == {"stage": "ab", "item": "loss", "ms": 1.2346, "error": "nan", "sizes": [1, 2]}
    assert second["status"] == "passed"


def test_a_line_is_on_the_disk_when_it_is_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    append_line(tmp_path / "results.jsonl", {"item": "a"})
    assert synced == [(tmp_path / "results.jsonl").stat().st_size] != [0]


def test_a_torn_last_line_costs_only_itself(tmp_path):
    path = tmp_path / "results.jsonl"
    append_line(path, {"item": "whole"})
    with path.open("a") as file:
        file.write('{"item": "to')
    assert [line["item"] for line in read_lines(path)] == ["whole"]


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "results.jsonl") == []


def test_numbers_that_are_not_finite_become_text():
    assert clean({"a": math.inf, "b": [math.nan, 2], "c": True, "d": None}) == {
        "a": "inf",
        "b": ["nan", 2],
        "c": True,
        "d": None,
    }


def test_a_stage_that_did_something_and_failed_nothing_passes():
    end = end_of(DONE, {"status": "skipped"}, {"status": "out_of_memory"})
    assert (end["status"], end["done"], end["skipped"], end["reasons"]) == ("passed", 2, 1, [])


@pytest.mark.parametrize(
    "lines", [(), ({"status": "skipped"},), ({"status": "skipped"}, {"status": "skipped"})]
)
def test_a_stage_that_executed_nothing_fails(lines):
    assert end_of(*lines)["status"] == "failed"
    assert end_of(*lines)["reasons"] == ["executed nothing"]


def test_every_reason_of_a_failure_is_named():
    end = end_of(DONE, FAILED, exit_code=1, gates_failed=["the loss falls"])
    assert end["status"] == "failed"
    assert end["reasons"] == ["its process ended with 1", "1 measurements failed", "gate: the loss falls"]


def test_a_killed_stage_is_reported_with_what_it_had():
    end = end_of(DONE, DONE, exit_code=None, killed="out of time")
    assert (end["status"], end["done"], end["exit"], end["reasons"]) == (
        "failed",
        2,
        None,
        ["killed: out of time"],
    )


def test_files_that_would_not_come_back_are_named(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.json").touch()
    os.truncate(tmp_path / "3.json", MOST_BYTES)
    assert find_oversize(tmp_path) == ["3.json: 16 MiB", "9 files, at most 8 come back"]
    assert find_oversize(tmp_path / "nothing") == []
