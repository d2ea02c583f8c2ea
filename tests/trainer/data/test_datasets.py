"""Data sets as people have them on disk: saved by `datasets`, folders of images, with odd columns."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.codes import find_codes
from tests.trainer.data.cifar_like import build_cifar_like
from trainer.data import open_data
from trainer.data.images import ImageData
from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError

NAMES = ["cat", "dog"]
CLASSES = datasets.ClassLabel(names=NAMES)


def picture(i: int) -> Image.Image:
    return Image.new("RGB", (6, 4), (i * 10 % 256, 0, 100))


def table(count: int, image: str = "image", label: str = "label") -> datasets.Dataset:
    features = datasets.Features({image: datasets.Image(), label: CLASSES})
    rows = {image: [picture(i) for i in range(count)], label: [i % 2 for i in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


def settings(path: Path, **more) -> Config:
    return Config(**{"run": "try", "dataset_path": str(path)} | more)


def sizes(data: ImageData) -> list[int]:
    return [len(split) for split in (data.train, data.validation, data.test)]


def test_digits_are_the_published_ones_split_once():
    data, seeded = (open_data(Config(run="try", seed=seed), 16) for seed in (0, 1))
    assert sizes(data) == [1294, 144, 359] and data.sha256 == seeded.sha256 and data.channels == 1
    splits = (data.train, data.validation, data.test)
    counts = np.bincount(np.concatenate([split.labels for split in splits]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's description
    pixels = np.concatenate([split.pixels(np.arange(len(split))) for split in splits])
    assert pixels.shape == (1797, 1, 8, 8) and len({each.tobytes() for each in pixels}) == 1797
    assert abs(pixels.mean() * 16 / 255 - 4.884165) < 1e-3  # scikit-learn's mean of images, but for roundings
    assert data.class_names == [*"0123456789"] and data.test.image_size == 16


def test_a_saved_data_set_with_its_own_splits(tmp_path):
    first, other = table(20), table(20).map(lambda row: {"label": 1 - row["label"]})
    for name, train in (("pets", first), ("relabelled", other)):
        datasets.DatasetDict({"train": train, "test": table(6)}).save_to_disk(str(tmp_path / name))
    config = settings(tmp_path / "pets")
    data = open_data(config, 8)
    assert sizes(data) == [18, 2, 6] and data.class_names == NAMES and config.dataset_name == "pets"
    pixels = data.test.pixels(np.array([3]))[0]
    # 6x4 pixels are no square: the middle, stored at 8/7 of the size that is wanted
    assert pixels.shape == (3, 10, 10) and tuple(pixels[:, 4, 4]) == (30, 0, 100)
    assert (
        data.sha256 == open_data(config, 8).sha256 != open_data(settings(tmp_path / "relabelled"), 8).sha256
    )
    assert sizes(open_data(settings(tmp_path / "pets", train_samples=5), 8)) == [5, 2, 6]


def test_a_single_table_with_named_columns(tmp_path):
    table(20, "photo", "animal").save_to_disk(str(tmp_path / "one"))
    data = open_data(settings(tmp_path / "one", image_column="photo", label_column="animal"), 8)
    assert sizes(data) == [14, 2, 4]


@pytest.mark.parametrize(
    ("features", "more", "codes", "told"),
    [
        (
            {"image": datasets.Image(), "label": CLASSES},
            {"image_column": "foto", "label_column": "klass"},
            ["SL-column-unknown"] * 2,
            ("'foto'", "'klass'", "image, label"),
        ),
        (
            {"image": datasets.Image(), "label": CLASSES},
            {"image_column": "label"},
            ["SL-image-column-kind"],
            (),
        ),
        (
            {"photo": datasets.Image(), "scan": datasets.Image(), "label": CLASSES},
            {},
            ["SL-column-unclear"],
            ("TRAINER_IMAGE_COLUMN", "photo, scan, label"),
        ),
        (
            {"image": datasets.Image(), "kind": datasets.Value("string")},
            {},
            ["SL-column-unclear"],
            ("TRAINER_LABEL_COLUMN", "image, kind"),
        ),
        ({"query": datasets.Value("string")}, {}, ["SL-text-for-images"], ("TRAINER_TASK=text",)),
        ({"image": datasets.Image()}, {}, ["SL-images-unlabelled"], ()),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, features, more, codes, told):
    values = {datasets.Image: picture(0), datasets.ClassLabel: 0, datasets.Value: "cat"}
    rows = {name: [values[type(feature)]] * 4 for name, feature in features.items()}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).save_to_disk(str(tmp_path / "t"))
    with pytest.raises((ConfigError, DataMissing)) as failure:
        open_data(settings(tmp_path / "t", **more), 8)
    assert find_codes(failure.value) == codes
    for part in told:
        assert part in str(failure.value)


def test_what_is_no_data_set_is_refused(tmp_path, monkeypatch):
    def find_none(name):
        raise ConnectionError(f"no {name} here")

    monkeypatch.setattr(datasets, "load_dataset", find_none)
    (tmp_path / "empty").mkdir()
    rows = {"image": [b"not a picture"] * 10, "label": [0, 1] * 5}
    features = datasets.Features({"image": datasets.Value("binary"), "label": CLASSES})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "bad"))
    for config, code, told in (
        (settings(tmp_path / "nowhere"), "SL-dataset-folder-absent", "nowhere"),
        (settings(tmp_path / "empty"), "SL-dataset-format", "empty"),
        (settings(tmp_path / "bad"), "SL-picture-undecodable", "10 of 10"),
        (Config(run="try", dataset="digitz"), "SL-dataset-unloadable", "digits"),
    ):
        with pytest.raises(DataMissing) as failure:
            open_data(config, 8)
        assert find_codes(failure.value) == [code] and told in str(failure.value)


def test_cifar_as_it_lies_on_the_hub(tmp_path):
    folder = build_cifar_like(tmp_path / "cifar100", classes=20, train=60, test=20)
    data = open_data(settings(folder), 224)
    assert data.train.shape == (3, 32, 32) and data.train.image_size == 224 and data.channels == 3
    assert data.class_names[:2] == ["fine0", "fine1"] and data.train.classes == 20
    assert sizes(data) == [54, 6, 20] and list(data.test.labels) == list(range(20))
    coarse = open_data(settings(folder, label_column="coarse_label"), 224)
    assert len(coarse.class_names) == 4 and list(coarse.test.labels) == [i % 4 for i in range(20)]
    assert coarse.sha256 != data.sha256
    # the same images whatever they are resized to later
    assert open_data(settings(folder), 64).sha256 == data.sha256


def test_the_short_names_stand_for_the_hub_s(monkeypatch):
    asked = []

    def load_dataset(name):
        asked.append(name)
        fine = name.endswith("cifar100")
        image, label, test = ("img", "fine_label", "test") if fine else ("image", "label", "validation")
        return datasets.DatasetDict({split: table(20, image, label) for split in ("train", test)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("cifar100", "food101", "someone/pets"):
        assert sizes(open_data(Config(run="try", dataset=name), 8)) == [18, 2, 20]
    assert asked == ["uoft-cs/cifar100", "ethz/food101", "someone/pets"]


def test_images_of_many_sizes_and_large_ones_are_stored_at_8_7_of_the_size_that_is_wanted(tmp_path):
    shapes = {"many": [(40 + i, 90) for i in range(10)], "large": [(100, 100)] * 10}
    for name, edges in shapes.items():
        rows = {"image": [Image.new("RGB", edge) for edge in edges], "label": [0, 1] * 5}
        features = datasets.Features({"image": datasets.Image(), "label": CLASSES})
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / name))
    found = open_data(settings(tmp_path / "many"), 28).train
    assert found.shape == (3, 32, 32) and found.pixels(np.arange(7)).shape == (7, 3, 32, 32)
    assert open_data(settings(tmp_path / "large"), 56).train.shape == (3, 64, 64)
    assert open_data(settings(tmp_path / "large"), 96).train.shape == (3, 100, 100)


def test_synthetic_images_come_from_their_index():
    first, second = (open_data(Config(run="try", dataset="synthetic", seed=seed), 32) for seed in (0, 1))
    assert sizes(first) == [1800, 200, 400]
    assert first.sha256 == second.sha256 and first.train.shape == (3, 32, 32) and len(first.class_names) == 10
    many = open_data(Config(run="try", dataset="synthetic", train_samples=3000), 128)
    assert len(many.train) == 3000 and many.train.shape == (3, 64, 64) and many.train.image_size == 128
    seen = {s.pixels(np.array([i])).tobytes() for s in (first.train, first.test) for i in range(100)}
    assert len(seen) == 200
