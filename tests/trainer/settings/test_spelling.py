"""A message names what its reader has typed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stratlab_spec.settings.wording import SpellingFormatter, name_again, name_first, name_removal, spell

POD = {"STRATLAB_NAMESPACE": "lab", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
REHEARSAL = {"STRATLAB_NAMESPACE": "lab"}
OPTIONS = {"STRATLAB_OPTIONS": "1"}
RESULTS = "TRAINER_RESULTS='/r' TRAINER_DATASET_PATH=x run.config.lr=1 (TRAINER_GRACE_S)"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (POD, "run.results.mountPath='/r' run.config.dataset_path=x run.config.lr=1 (run.graceSeconds)"),
        (REHEARSAL, "--results='/r' run.config.dataset_path=x run.config.lr=1 (run.graceSeconds)"),
        (REHEARSAL | OPTIONS, "results='/r' dataset_path=x lr=1 (grace_s)"),
        ({}, "TRAINER_RESULTS='/r' TRAINER_DATASET_PATH=x TRAINER_LR=1 (TRAINER_GRACE_S)"),
    ],
)
def test_a_setting_is_called_as_it_was_typed(env: dict[str, str], said: str) -> None:
    assert spell(RESULTS, env) == said
    others = "MY_TRAINER_LR TRAINER_LRx trainer.launch run.configure TRAINER_"
    assert spell(others, env) == others
    assert spell(RESULTS, REHEARSAL, elsewhere=True) == spell(RESULTS, POD)


def test_log_lines_are_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATLAB_OPTIONS", "1")
    record = logging.LogRecord("trainer", logging.INFO, "file", 1, "lower %s", ("TRAINER_LR",), None)
    assert SpellingFormatter("%(message)s").format(record) == "lower lr"


def test_what_starts_again_and_removes_is_the_place_s_own() -> None:
    for env in (REHEARSAL, OPTIONS, {}):
        assert "install" not in name_again(env)
        assert name_removal(Path("/r/c d/try"), env) == "stratlab remove '/r/c d/try'"
    assert "install" in name_again(POD)
    assert name_removal(Path("/r/c/try"), POD) == "stratlab remove c/try --on-cluster -n lab"


def test_a_long_list_is_cut():
    assert [name_first(names, 2) for names in ([], ["a", "b"], [*"abcde"])] == ["", "a, b", "a, b and 3 more"]
