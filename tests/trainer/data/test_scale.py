"""Images that would be enlarged or reduced beyond sense are refused before anything starts."""

from __future__ import annotations

import pytest
from PIL import Image

from tests.codes import find_codes
from trainer.data import open_data
from trainer.data.scale import scale_problem
from trainer.launch.preflight import check
from trainer.settings.config import Config, ConfigError


def config(**settings) -> Config:
    return Config(**{"run": "try"} | settings)


@pytest.mark.parametrize(
    ("source", "size", "fits"),
    [
        (32, 224, True),
        (32, 225, False),
        (512, 32, True),
        (513, 32, False),
        (None, 2048, True),
    ],
)
def test_bounds(source, size, fits):
    assert (scale_problem(config(image_size=size), source, size) is None) == fits


def test_the_readmes_old_command_is_refused_with_the_settings_to_change(tmp_path):
    with pytest.raises(ConfigError) as failure:
        check(config(results=str(tmp_path), model="vit_huge", global_batch_size=512, epochs=1), 1, {})
    scale, profile = failure.value.problems
    assert find_codes(scale) == ["SL-image-scale"] and profile.startswith("TRAINER_PROFILE_STEPS=3")
    for part in ("TRAINER_IMAGE_SIZE=224", "vit_huge", "digits", " 8 pixels", "28 times", "1 to 56 pixels"):
        assert part in scale


def test_the_edge_of_a_source_is_that_of_its_files(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(4):
            Image.new("RGB", (40 + 10 * i, 80)).save(tmp_path / label / f"{i}.png")
    assert open_data(config(dataset_path=str(tmp_path)), 224).source_edge == 55  # 40, 50, 60, 70, twice
    assert open_data(config(), 16).source_edge == 8
    assert open_data(config(dataset="synthetic"), 224).source_edge is None
