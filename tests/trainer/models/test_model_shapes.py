from __future__ import annotations

import json

import pytest

from stratlab_spec.models.model_specs import (
    count_batch_norm_samples,
    default_image_size,
    image_size_problem,
    lone_value_problem,
    model_problems,
)
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import MODELS
from tests.codes import find_codes
from tests.trainer.models.conftest import small_settings
from trainer.launch.preflight import Pods, check, check_elsewhere
from trainer.memory_estimation.rules import read_countable


def settings(model: str = "", **values) -> Config:
    return Config(run="r", **({"model": model} if model else {}), **values)


@pytest.mark.parametrize(
    ("name", "size", "code", "fits"),
    [
        ("vit_huge", 230, "SL-image-size-step", 224),
        ("cnn", 12, "SL-image-size-step", 16),
        ("vgg", 31, "SL-image-size-small", 32),
        ("owner/name", 0, "SL-image-size-step", 17),
    ],
)
def test_an_image_size_that_does_not_fit_names_one_that_does(name, size, code, fits):
    said = image_size_problem(settings(name), size)
    assert find_codes(said) == [code] and (f" {fits} " in said or name == "owner/name")
    assert image_size_problem(settings(name), fits) is None


def test_every_default_image_size_fits_and_that_of_a_folder_comes_from_its_config_json(tmp_path):
    for name in MODELS:
        assert image_size_problem(settings(name), default_image_size(settings(name))) is None
    small_settings("vit", image_size=48).save_pretrained(tmp_path)
    config = settings(model_path=str(tmp_path))
    assert default_image_size(config) == 48 and image_size_problem(config, 18) is not None
    assert default_image_size(settings("owner/name")) == 224


def test_problems_of_a_folder(tmp_path):
    folder = tmp_path / "m"

    def codes(content: str, **values) -> list[str]:
        if content:
            folder.mkdir(exist_ok=True)
            (folder / "config.json").write_text(content)
        return find_codes(model_problems(settings(model_path=str(folder), **values)))

    assert codes("") == ["SL-model-folder-absent"]
    assert codes("{") == ["SL-model-json-absent"]
    assert codes(json.dumps({"stratlab_model": "cnm"})) == ["SL-architecture-unknown"]
    assert codes(json.dumps({"stratlab_model": "cnn"})) == []
    assert codes(json.dumps({"stratlab_model": "cnn"}), init="pretrained") == ["SL-weights-absent"]
    assert find_codes(model_problems(settings("cnn", init="pretrained"))) == ["SL-weights-unpublished"]


def test_batch_norm_needs_more_than_one_value():
    def problem(processes: int, model="resnet", micro=1, size=32, batch_norm="local") -> bool:
        sizes = {"image_size": size, "micro_batch_size": micro, "batch_norm": batch_norm}
        return lone_value_problem(settings(model, **sizes), processes) is not None

    assert problem(1) and problem(2) and problem(1, batch_norm="synchronised")
    assert not problem(2, batch_norm="synchronised")
    assert not (
        problem(1, micro=2) or problem(1, size=64) or problem(1, model="vgg") or problem(1, model="cnn")
    )


def test_every_check_knows_how_many_processes_share_the_statistics():
    one = {"micro_batch_size": 1, "global_batch_size": 2, "image_size": 32, "profile_steps": 0}
    alone = settings("mobilenet", **one, strategy="ddp")
    shared = settings("mobilenet", **one, batch_norm="synchronised", strategy="ddp")
    check(shared, 2, {}, replaces=True)
    check_elsewhere(shared, Pods(2, 1))
    given = alone.model_dump(exclude_unset=True)
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in given.items()}
    for look in (
        lambda: check(alone, 2, {}, replaces=True),
        lambda: check_elsewhere(alone, Pods(2, 1)),
        lambda: read_countable(env, 2, 0, 2),
    ):
        with pytest.raises(ConfigError) as caught:
            look()
        assert find_codes(caught.value) == ["SL-batch-norm-one-sample"]
    assert read_countable(env | {"TRAINER_BATCH_NORM": "synchronised"}, 2, 0, 2).micro_batch_size == 1


def test_of_how_many_samples_batch_norm_takes_the_statistics():
    for values, samples in (
        ({"model": "mobilenet"}, 8),
        ({"model": "mobilenet", "batch_norm": "synchronised"}, 32),
        ({"model": "vgg"}, None),
        ({"model": "owner/name"}, None),
        ({"model": "owner/name", "batch_norm": "synchronised"}, 32),
    ):
        assert count_batch_norm_samples(Config(run="r", micro_batch_size=8, **values), 4) == samples
