from __future__ import annotations

import pytest

from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.rules import snapshot_problems
from tests.codes import find_codes
from trainer.launch import preflight


def test_a_snapshot_is_refused_on_a_cpu_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "has_gpu", lambda: False)
    config = Config(run="x", memory_snapshot=True, results=str(tmp_path))
    with pytest.raises(ConfigError) as failure:
        preflight.check(config, 1, {})
    assert find_codes(failure.value) == ["SL-snapshot-no-gpu"]
    assert snapshot_problems(config, gpu=True) == snapshot_problems(Config(run="x"), gpu=False) == []
