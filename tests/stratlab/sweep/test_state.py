"""The state file: whole or not at all, one sweep at a time, and only for the sweep it belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.sweep import state as module
from stratlab.sweep.state import Entry, only_one, read_state, state_file
from stratlab.user_error import UserError
from tests.codes import find_codes


def refused(file: Path, comparison: str, namespace: str) -> list[str]:
    with pytest.raises(UserError) as failure:
        read_state(file, comparison, namespace)
    assert str(file) in str(failure.value)
    return find_codes(failure.value)


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    file = state_file(tmp_path / "sweep.yaml")
    assert file.name == "sweep.yaml.state.json"
    state = read_state(file, "demo", "lab")
    assert state.releases == {} and not file.exists()
    state = state.record("a", stage="running", asked="1", started=5.0)
    state = state.record("b", stage="installing", asked="2")
    state = state.record("a", stage="failed", sentence="no", ended=9.0)
    again = read_state(file, "demo", "lab")
    assert again == state and again.releases["a"] == Entry("failed", "1", "no", 5.0, 9.0)
    assert json.loads(file.read_text())["schema_version"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "no temporary file stays"


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "s.json"
    before = read_state(file, "demo", "lab").record("a", stage="running", asked="1")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(OSError):
        before.record("a", stage="failed")
    assert read_state(file, "demo", "lab") == before


@pytest.mark.parametrize("content", ["{", "[]", '{"releases": {"a": {"nope": 1}}}'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "s.json"
    file.write_text(content)
    assert refused(file, "demo", "lab") == ["SL-state-unreadable"]


def test_the_state_of_another_comparison_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    read_state(file, "demo", "lab").record("a", stage="running", asked="1")
    assert refused(file, "other", "lab") == ["SL-state-of-another"]
    assert refused(file, "demo", "lab2") == ["SL-state-of-another"]


def test_a_second_sweep_of_one_file_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    with only_one(file):
        with pytest.raises(UserError) as failure:
            with only_one(file):
                pass
    assert find_codes(failure.value) == ["SL-already-at-work"] and str(file) in str(failure.value)
    with only_one(file):
        pass
