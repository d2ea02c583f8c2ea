"""What `load_data` and `load_model` refuse beside a run directory, and why there are no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.api import ConfigError, DataMissing, load_data, load_model
from trainer.settings.config import Config


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has just ended and left no weights."""
    folder = tmp_path / "demo" / "short"
    folder.mkdir(parents=True)
    asked = Config(run="short", model="cnn", image_size=8)
    content = {"config": asked.model_dump(), "resolved": {"image_size": 8}}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_a_run_without_weights_says_which_setting_leaves_them(run: Path) -> None:
    with pytest.raises(DataMissing, match="with checkpoint_every above 0, .* longer than checkpoint_minutes"):
        load_model(run)


@pytest.mark.parametrize("weights", ["bst", "", None, 5, "a\0b"])
def test_weights_that_name_nothing(run: Path, weights: Any) -> None:
    with pytest.raises(ConfigError, match="^weights=.*: expected final, best or a folder"):
        load_model(run, weights=weights)


@pytest.mark.parametrize("path", [5, True, ["a"]])
def test_a_path_that_is_none(run: Path, path: Any) -> None:
    with pytest.raises(ConfigError, match="^dataset_path=.*: expected a path"):
        load_data(run, dataset_path=path)
    if path is not None:
        with pytest.raises(ConfigError, match="^run=.*: expected a run directory"):
            load_data(path)


def test_a_path_beside_a_run_is_looked_at(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="^dataset_path=.*no such folder"):
        load_data(run, dataset_path=tmp_path / "absent")  # type: ignore[arg-type]
