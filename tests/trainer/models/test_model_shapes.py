from __future__ import annotations

import json

import pytest

from tests.trainer.models.conftest import small_settings
from trainer.counting.rules import read_countable
from trainer.launch.preflight import Pods, check, check_elsewhere
from trainer.models import build_model
from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import MODELS
from trainer.shapes.model_shapes import (
    count_batch_norm_samples,
    default_image_size,
    image_size_problem,
    lone_value_problem,
    model_problems,
)


def settings(model: str = "", **values) -> Config:
    return Config(run="r", **({"model": model} if model else {}), **values)


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("vit_base", 224, None),
        ("vit_huge", 230, "TRAINER_IMAGE_SIZE=230: vit_huge needs a multiple of 14, for example 224"),
        ("cnn", 12, "TRAINER_IMAGE_SIZE=12: cnn needs a multiple of 8, for example 16"),
        ("cnn_lstm", 24, "TRAINER_IMAGE_SIZE=24: cnn_lstm needs a multiple of 16, for example 32"),
        ("vgg", 31, "TRAINER_IMAGE_SIZE=31: vgg needs 32 or more"),
        ("resnet", 33, None),
        ("owner/name", 17, None),
    ],
)
def test_an_image_size_that_does_not_fit_names_one_that_does(name, size, sentence):
    assert image_size_problem(settings(name), size) == sentence


@pytest.mark.parametrize("name", MODELS)
def test_every_default_image_size_fits(name):
    assert image_size_problem(settings(name), default_image_size(settings(name))) is None


def test_sizes_of_a_folder_come_from_its_config_json(tmp_path):
    small_settings("vit", image_size=48).save_pretrained(tmp_path)
    config = settings(model_path=str(tmp_path))
    assert default_image_size(config) == 48
    assert image_size_problem(config, 18) == (
        f"TRAINER_IMAGE_SIZE=18: {tmp_path.name} needs a multiple of 4, for example 16"
    )
    assert default_image_size(settings("owner/name")) == 224


def test_problems_of_a_folder(tmp_path):
    def problems(**values) -> list[str]:
        return model_problems(settings(model_path=str(tmp_path / "m"), **values))

    named = f"TRAINER_MODEL_PATH='{tmp_path}/m'"
    assert problems() == [f"{named}: no such folder"]
    (tmp_path / "m").mkdir()
    expected = "holds no readable config.json, expected a model in Hugging Face format"
    assert problems() == [f"{named}: {expected}"]
    (tmp_path / "m" / "config.json").write_text("{")
    assert problems() == [f"{named}: {expected}"]
    (tmp_path / "m" / "config.json").write_text(json.dumps({"stratlab_model": "cnm"}))
    assert problems()[0].startswith(
        f"{named}: its config.json names the architecture 'cnm', expected one of vit_t"
    )
    (tmp_path / "m" / "config.json").write_text(json.dumps({"stratlab_model": "cnn"}))
    assert problems() == []
    assert problems(init="pretrained") == [
        f"{named}: holds no *.safetensors, which TRAINER_INIT='pretrained' loads"
    ]


@pytest.mark.parametrize("name", ["vit_tiny", "vit_small", "cnn", "cnn_lstm", "ensemble"])
def test_weights_that_nobody_published(name):
    config = settings(name, init="pretrained")
    sentence = (
        f"TRAINER_INIT='pretrained': nobody has published weights of {name}; there are some of vit_base, vit_large, "
        "vit_huge, mobilenet, efficientnet, vgg, resnet and of models on the hub (owner/name), or name a folder in "
        "TRAINER_MODEL_PATH"
    )
    assert model_problems(config) == [sentence]
    with pytest.raises(ConfigError) as caught:
        build_model(config, image_size=32, channels=1, num_labels=2)
    assert caught.value.problems == [sentence]


@pytest.mark.parametrize(
    ("batch_norm", "processes", "way_out"),
    [
        ("local", 1, "two samples or a larger image"),
        ("local", 2, "two samples, TRAINER_BATCH_NORM=synchronised or a larger image"),
        ("synchronised", 1, "two samples or a larger image"),
        ("synchronised", 2, None),
    ],
)
def test_batch_norm_needs_more_than_one_value(batch_norm, processes, way_out):
    config = settings("resnet", image_size=32, micro_batch_size=1, batch_norm=batch_norm)
    said = (
        "TRAINER_MICRO_BATCH_SIZE=1, TRAINER_IMAGE_SIZE=32: the batch norm of resnet needs more than one value per "
        f"channel, so {way_out}"
    )
    assert lone_value_problem(config, processes) == (said if way_out else None)
    assert model_problems(config) == []


def test_one_sample_is_enough_without_batch_norm_or_with_pixels_left():
    for fits in (
        settings("resnet"),
        settings("vgg", image_size=32),
        settings("cnn"),
        settings(dataset="arithmetic"),
    ):
        assert lone_value_problem(fits.model_copy(update={"micro_batch_size": 1}), 1) is None


def test_every_check_knows_how_many_processes_share_the_statistics():
    one = {"micro_batch_size": 1, "global_batch_size": 2, "image_size": 32, "profile_steps": 0}
    shared = settings("mobilenet", **one, batch_norm="synchronised", strategy="ddp")
    alone = settings("mobilenet", **one, strategy="ddp")
    check(shared, 2, {}, replaces=True)
    check_elsewhere(shared, Pods(2, 1))
    for look in (lambda: check(alone, 2, {}, replaces=True), lambda: check_elsewhere(alone, Pods(2, 1))):
        with pytest.raises(ConfigError, match="needs more than one value per channel"):
            look()
    env = {
        f"TRAINER_{name.upper()}": str(value) for name, value in alone.model_dump(exclude_unset=True).items()
    }
    with pytest.raises(ConfigError, match="needs more than one value per channel"):
        read_countable(env, 2, 0, 2)
    assert read_countable(env | {"TRAINER_BATCH_NORM": "synchronised"}, 2, 0, 2).micro_batch_size == 1


@pytest.mark.parametrize(
    ("settings", "samples"),
    [
        ({"model": "mobilenet"}, 8),
        ({"model": "mobilenet", "batch_norm": "synchronised"}, 32),
        ({"model": "vgg"}, None),
        ({"model": "owner/name"}, None),
        ({"model": "owner/name", "batch_norm": "synchronised"}, 32),
    ],
)
def test_of_how_many_samples_batch_norm_takes_the_statistics(settings, samples):
    assert count_batch_norm_samples(Config(run="r", micro_batch_size=8, **settings), 4) == samples
