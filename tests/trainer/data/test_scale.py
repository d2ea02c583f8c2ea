"""Images that would be enlarged or reduced beyond sense are refused before anything starts."""

from __future__ import annotations

import pytest

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.data.image_checks import scale_problem
from trainer.launch.preflight import check


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
