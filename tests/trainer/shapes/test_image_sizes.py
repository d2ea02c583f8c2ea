"""What the tools are told of the networks' own image sizes is what the trainer takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.settings.config import Config
from trainer.settings.fields import MODELS, TEXT_MODELS
from trainer.shapes.image_sizes import IMAGE_SIZES, describe_for_tools
from trainer.shapes.model_shapes import default_image_size


def test_the_table_of_the_tools_is_current() -> None:
    assert Path("stratlab/tables/image_sizes.json").read_text() == describe_for_tools(), "make schema"


def test_every_image_model_is_in_it() -> None:
    assert set(IMAGE_SIZES) == set(MODELS) - set(TEXT_MODELS)


@pytest.mark.parametrize("model", IMAGE_SIZES)
def test_a_run_takes_the_same(model: str) -> None:
    assert default_image_size(Config(strategy="ddp", run="x", model=model)) == IMAGE_SIZES[model]
