"""What is said at the end of a run and of a rehearsal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.rehearse.planned_run import Request
from stratlab.rehearse.rehearsal import asks_for_accelerator
from stratlab.rehearse.summary import RunEnd, describe_end, describe_success, next_commands


def test_a_run_that_was_restarted_or_lost_traces_says_so(tmp_path: Path) -> None:
    summary, attempts = tmp_path / "summary.json", tmp_path / "attempts.jsonl"
    summary.write_text('{"steps": 20, "samples_per_s": 98.24, "measured_steps": 15}')
    lines = [json.dumps({"t": n, "attempt": n, "event": "started"}) + "\n" for n in (1, 2)]
    attempts.write_text(lines[0])
    (said,) = describe_success(tmp_path, 3).splitlines()
    assert said.startswith("done in 3 s: 20 steps, samples_per_s 98.24 (mean of 15 ")
    attempts.write_text("".join(lines) + "half a li")
    assert " 2 attempts" in describe_success(tmp_path, 3).splitlines()[1]
    attempts.unlink()
    (tmp_path / "traces").mkdir()
    for dropped, told in (
        ([{"rank": 0, "reason": "No space left."}], "rank 0: No space left"),
        (["odd"], ""),
    ):
        manifest = {"files": [], "dropped": dropped}
        (tmp_path / "traces" / "manifest.json").write_text(json.dumps(manifest))
        assert told in "".join(more := describe_success(tmp_path, 3).splitlines()[1:]) and bool(more) is bool(
            told
        )
    summary.write_text("[" * 100_000)
    assert "done in 3 s" in describe_success(tmp_path, 3)


def test_the_next_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratlab.rehearse.summary.name_program", lambda: ".venv/bin/stratlab")
    (tmp_path / "a b" / "x").mkdir(parents=True)
    end = RunEnd("x", tmp_path / "a b" / "x", 0)
    lines = next_commands([end, end], Path("/m"))
    assert f"compare them:  .venv/bin/stratlab compare '{tmp_path}/a b' --mlflow /m" in lines
    assert lines[-1].endswith(" .venv/bin/stratlab mlflow /m")
    monkeypatch.chdir(tmp_path)
    assert next_commands([end, end], tmp_path / "mlflow")[0].endswith(" a b/x")
    assert not any("compare" in line for line in next_commands([end], Path("/m")))


def test_a_run_that_left_nothing_is_told_to_a_program(tmp_path: Path) -> None:
    failed = describe_end(RunEnd("gone", tmp_path / "nowhere/gone", 2))
    assert failed["report"] is None and failed["steps"] is None and failed["reason"] is None
    assert failed["exit_code"] == 2


def test_an_accelerator_is_spoken_of_where_the_user_has_named_one(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("run: {accelerator: some/gpu}")
    for settings, files, asks in (
        (["run.config.steps=2"], [], False),  # that of the chart
        (["run.config.steps=2,run.accelerator=some/gpu"], [], True),
        ([], [values], True),
    ):
        request = Request([], tmp_path, tmp_path, settings=settings, values=files)
        assert asks_for_accelerator(request) is asks
