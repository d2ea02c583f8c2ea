import json

import pytest

from stratlab_spec.models.model_specs import (
    count_batch_norm_samples,
    image_size_problem,
    lone_value_problem,
    model_problems,
)
from stratlab_spec.settings.config import Config
from tests.codes import find_codes


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


def test_problems_of_a_folder(tmp_path):
    folder = tmp_path / "m"

    def codes(content: str, **values) -> list[str]:
        if content:
            folder.mkdir(exist_ok=True)
            (folder / "config.json").write_text(content)
        return find_codes(model_problems(settings(model_path=str(folder), **values)))

    assert (codes(""), codes("{")) == (["SL-model-folder-absent"], ["SL-model-json-absent"])
    assert codes(json.dumps({"stratlab_model": "cnm"})) == ["SL-architecture-unknown"]
    assert codes(json.dumps({"stratlab_model": "cnn"})) == []
    assert codes(json.dumps({"stratlab_model": "cnn"}), init="pretrained") == ["SL-weights-absent"]
    assert find_codes(model_problems(settings("cnn", init="pretrained"))) == ["SL-weights-unpublished"]


def test_batch_norm_needs_more_than_one_value():
    def problem(processes: int, model="resnet", micro=1, size=32, batch_norm="local") -> bool:
        sizes = {"image_size": size, "micro_batch_size": micro, "batch_norm": batch_norm}
        said = lone_value_problem(settings(model, **sizes), processes)
        assert said is None or find_codes(said) == ["SL-batch-norm-one-sample"]
        return said is not None

    assert problem(1) and problem(2) and problem(1, batch_norm="synchronised")
    assert not problem(2, batch_norm="synchronised")
    assert not (
        problem(1, micro=2) or problem(1, size=64) or problem(1, model="vgg") or problem(1, model="cnn")
    )


def test_of_how_many_samples_batch_norm_takes_the_statistics():
    for values, samples in (
        ({"model": "mobilenet"}, 8),
        ({"model": "mobilenet", "batch_norm": "synchronised"}, 32),
        ({"model": "vgg"}, None),
        ({"model": "owner/name"}, None),
        ({"model": "owner/name", "batch_norm": "synchronised"}, 32),
    ):
        assert count_batch_norm_samples(Config(run="r", micro_batch_size=8, **values), 4) == samples
