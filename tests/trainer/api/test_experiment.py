from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trainer.api import ConfigError, experiment, run_experiment


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"processes": 0}, "processes='0': expected a number from 1"),
        ({"processes": -1}, "processes='-1': expected a number from 1"),
        ({"processes": 1.5}, "processes='1.5': expected a number from 1"),
        ({"processes": "two"}, "processes='two': expected a number from 1"),
        (
            {"dataset_path": "/a\0b"},
            "dataset_path='/a\\x00b': holds a character that no process can be given",
        ),
        (
            {"dataset_path": "\ud800"},
            "dataset_path='\\ud800': holds a character that no process can be given",
        ),
        ({"config": "/a\0b"}, "config='/a\\x00b': holds a character that no process can be given"),
        ({"lr": 0.5, "LR": 0.001}, "'LR': no name of a setting, did you mean lr?"),
        ({"strategy": "dpp"}, "strategy='dpp': expected one of single, ddp"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_given_and_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def start(command: list[str], echo: bool) -> tuple[int, str]:
        raise AssertionError(f"started: {command}")

    monkeypatch.setattr(experiment, "_follow", start)
    with pytest.raises(ConfigError) as refused:
        run_experiment(**given)
    assert refused.value.problems[0].startswith(sentence)


def test_a_call_without_a_name_is_a_new_run(tmp_path: Path) -> None:
    now = datetime(2026, 11, 25, 15, 44, tzinfo=UTC)
    env = {"TRAINER_STRATEGY": "ddp", "TRAINER_RESULTS": str(tmp_path)}
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400"
    (tmp_path / "default/ddp-20261125-154400").mkdir(parents=True)
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400-2"
