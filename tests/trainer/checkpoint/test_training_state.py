"""state.json of a checkpoint: what is no state of a run is refused by the name of its file."""

from __future__ import annotations

import json

import pytest

from trainer.checkpoint.training_state import FILE, TrainingState
from trainer.settings.config import ConfigError

STATE = TrainingState(
    step=20,
    attempt=1,
    strategy="ddp",
    world_size=2,
    axes={"dp_replicate": 2},
    config_sha256="ab",
    samples=640,
    train_loss=1.5,
    skipped_steps=0,
    train_time_s=2.5,
)


def test_what_was_written_is_read_and_a_later_version_s_fields_are_left_out(tmp_path):
    STATE.write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(content | {"of_later": 1}))
    assert TrainingState.read(tmp_path) == STATE


@pytest.mark.parametrize(
    "change", [{"step": -5}, {"step": "20"}, {"samples": None}, {"attempt": 1.5}, {"world_size": True}]
)
def test_counts_are_counts(tmp_path, change):
    STATE.write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(content | change))
    with pytest.raises(ConfigError, match=r"state\.json: is no state of a run: \{"):
        TrainingState.read(tmp_path)


@pytest.mark.parametrize("content", [[], "x", None, {}, {"step": 1}])
def test_what_is_no_state_is_refused(tmp_path, content):
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="is no state of a run"):
        TrainingState.read(tmp_path)
