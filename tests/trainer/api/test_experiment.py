from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainer.api import ConfigError, ExperimentFailed, experiment, run_experiment


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"processes": 1.5}, ["processes='1.5'"]),
        ({"dataset_path": "/a\0b"}, ["dataset_path='/a\\x00b'"]),
        ({"config": "/a\0b"}, ["config='/a\\x00b'"]),
        ({"lr": 0.5, "LR": 0.001}, ["'LR'"]),
        ({"lrr": 1, "steps": -1}, ["lrr", "steps='-1'"]),
    ],
)
def test_what_is_wrong_is_named_as_it_was_given_and_nothing_starts(tmp_path, monkeypatch, given, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_follow", lambda command, echo: pytest.fail(f"started: {command}"))
    with pytest.raises(ConfigError) as refused:
        run_experiment(**given)
    assert all(
        problem.startswith(name) for problem, name in zip(refused.value.problems, named, strict=True)
    ), refused.value.problems


@pytest.mark.parametrize("code", [0, 12])
def test_the_run_is_a_program_with_these_options(tmp_path, monkeypatch, capsys, code):
    """A stand-in for Python that tells its arguments; that the run is the command's: ranks/slow/test_api.py."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setattr(experiment.sys, "executable", str(program))
    given = {"processes": 2, "run": "try", "lr": 0.5, "lora_rank": None, "tensorboard": True}
    folder = Path("results/runs/default/try")
    if code:
        with pytest.raises(ExperimentFailed) as failed:
            run_experiment(**given, echo=False)
        assert (failed.value.exit_code, failed.value.folder) == (12, folder) and "lr=0.5" in str(failed.value)
        assert capsys.readouterr().err == ""
    else:
        assert run_experiment(**given) == folder
        settings = ("run=try", "lr=0.5", "lora_rank=null", "tensorboard=true", "run=try")
        typed = [word for pair in settings for word in ("--set", pair)]
        assert capsys.readouterr().err.split() == ["-m", "trainer", "--processes", "2", *typed]


def test_a_call_without_a_name_is_a_new_run(tmp_path):
    now = datetime(2026, 11, 25, 15, 44, tzinfo=UTC)
    env = {"TRAINER_STRATEGY": "ddp", "TRAINER_RESULTS": str(tmp_path)}
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400"
    (tmp_path / "default/ddp-20261125-154400").mkdir(parents=True)
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400-2"
