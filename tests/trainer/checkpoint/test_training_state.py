"""state.json of a checkpoint: what is no state of a run is refused by the name of its file."""

from __future__ import annotations

import json

import pytest

from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from tests.trainer.checkpoint.test_folder import STATE
from trainer.checkpoint.folder import FILE, TrainingState


def test_what_was_written_is_read_and_a_later_version_s_fields_are_left_out(tmp_path):
    STATE.write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(content | {"of_later": 1}))
    assert TrainingState.read(tmp_path) == STATE


@pytest.mark.parametrize(
    "content",
    [
        *({"step": -5}, {"samples": None}, {"attempt": 1.5}, {"world_size": True}, [], {}),
    ],
)
def test_what_is_no_state_is_refused(tmp_path, content):
    STATE.write(tmp_path)
    if content and isinstance(content, dict):
        content = json.loads((tmp_path / FILE).read_text()) | content
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(ConfigError) as refused:
        TrainingState.read(tmp_path)
    assert find_codes(refused.value) == ["SL-state-not-a-run"] and FILE in str(refused.value)
