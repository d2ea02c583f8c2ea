"""What `load_data` and `load_model` refuse beside a run directory, and why there are no weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from trainer.api import ConfigError, DataMissing, load_data, load_model


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has just ended and left no weights."""
    folder = tmp_path / "demo" / "short"
    folder.mkdir(parents=True)
    asked = Config(run="short", model="cnn", image_size=8)
    content = {"config": asked.model_dump(), "resolved": {"image_size": 8}}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_weights_that_are_not_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as missing:
        load_model(run)
    assert "checkpoint_every" in str(missing.value) and "checkpoint_minutes" in str(missing.value)
    for given, named in (({"weights": "bst"}, "weights="), ({"weights": 5}, "weights=")):
        with pytest.raises(ConfigError) as refused:
            load_model(run, **given)
        assert str(refused.value).startswith(named)
    with pytest.raises(DataMissing):
        load_model(run, weights=str(tmp_path))


def test_beside_a_run_directory_stands_nothing_but_a_path(run: Path, tmp_path: Path) -> None:
    for path in (5, ["a"]):
        with pytest.raises(ConfigError) as refused:
            load_data(run, dataset_path=path)  # type: ignore[arg-type]
        assert (
            find_codes(refused.value) == ["SL-setting-no-path"] and str(refused.value)[:13] == "dataset_path="
        )
        with pytest.raises(ConfigError) as refused:
            load_data(path)  # type: ignore[arg-type]
        assert find_codes(refused.value) == ["SL-run-no-path"]
    with pytest.raises(ConfigError) as refused:
        load_model(run, lr=1e-3)
    assert find_codes(refused.value) == ["SL-setting-beside-run"] and str(refused.value).startswith("lr: ")
    with pytest.raises(DataMissing) as missing:
        load_data(run, dataset_path=tmp_path / "absent")  # type: ignore[arg-type]
    assert str(missing.value).startswith("dataset_path=")
    with pytest.raises(ConfigError) as refused:
        load_model(tmp_path)
    assert str(tmp_path) in str(refused.value)
