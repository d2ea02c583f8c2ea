from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trainer.api import ConfigError, experiment, run_experiment


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"processes": 0}, ["processes='0'"]),
        ({"processes": 1.5}, ["processes='1.5'"]),
        ({"dataset_path": "/a\0b"}, ["dataset_path='/a\\x00b'"]),
        ({"dataset_path": "\ud800"}, ["dataset_path='\\ud800'"]),
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


def test_a_call_without_a_name_is_a_new_run(tmp_path):
    now = datetime(2026, 11, 25, 15, 44, tzinfo=UTC)
    env = {"TRAINER_STRATEGY": "ddp", "TRAINER_RESULTS": str(tmp_path)}
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400"
    (tmp_path / "default/ddp-20261125-154400").mkdir(parents=True)
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400-2"
