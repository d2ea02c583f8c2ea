"""Data sets as people have them on disk or on the hub, and those that are built in."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
from PIL import Image

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.data.cifar_like import build_cifar_like
from tests.trainer.data.pictures import ABC, BROKEN, TEXT, opened, pngs, save, sizes, table
from trainer.data import open_data


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
    labels = [0, 1] * 10
    for name, codes in (("pets", labels), ("relabelled", labels[::-1])):
        save(tmp_path / name, train=table(pngs(20), codes), test=table(pngs(6), labels[:6]))
    data = opened(tmp_path / "pets", 8)
    assert sizes(data) == [18, 2, 6] and data.class_names == ABC.names
    assert data.test.pixels(np.arange(6))[:, 0, 0, 0].tolist() == [*range(6)]
    again, other = (opened(tmp_path / name, 8).sha256 for name in ("pets", "relabelled"))
    assert data.sha256 == again != other
    assert sizes(opened(tmp_path / "pets", 8, train_samples=5)) == [5, 2, 6]


IMAGE = datasets.Image()


@pytest.mark.parametrize(
    ("features", "settings", "codes", "told"),
    [
        (
            {"image": IMAGE, "label": ABC},
            {"image_column": "foto", "label_column": "klass"},
            ["SL-column-unknown"] * 2,
            "image, label",
        ),
        ({"image": IMAGE, "label": ABC}, {"image_column": "label"}, ["SL-image-column-kind"], "label"),
        ({"photo": IMAGE, "scan": IMAGE, "label": ABC}, {}, ["SL-column-unclear"], "TRAINER_IMAGE_COLUMN"),
        ({"image": IMAGE, "kind": TEXT}, {}, ["SL-column-unclear"], "TRAINER_LABEL_COLUMN"),
        ({"query": TEXT}, {}, ["SL-text-for-images"], "TRAINER_TASK=text"),
        ({"image": IMAGE}, {}, ["SL-images-unlabelled"], "TRAINER_DATASET_PATH"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, features, settings, codes, told):
    values = {
        datasets.Image: {"bytes": pngs(1)[0], "path": None},
        datasets.ClassLabel: 0,
        datasets.Value: "x",
    }
    rows = {name: [values[type(feature)]] * 4 for name, feature in features.items()}
    save(tmp_path / "t", train=datasets.Dataset.from_dict(rows, features=datasets.Features(features)))
    with pytest.raises((ConfigError, DataMissing)) as failure:
        opened(tmp_path / "t", **settings)
    assert find_codes(failure.value) == codes and told in str(failure.value)


def test_what_is_no_data_set_is_refused(tmp_path, monkeypatch):
    def find_none(name):
        raise ConnectionError(f"no {name} here")

    monkeypatch.setattr(datasets, "load_dataset", find_none)
    (tmp_path / "empty").mkdir()
    save(tmp_path / "bad", train=table([BROKEN] * 10, [0, 1] * 5))
    for settings, code, told in (
        ({"dataset_path": str(tmp_path / "nowhere")}, "SL-dataset-folder-absent", "nowhere"),
        ({"dataset_path": str(tmp_path / "empty")}, "SL-dataset-format", "empty"),
        ({"dataset_path": str(tmp_path / "bad")}, "SL-picture-undecodable", "10 of 10"),
        ({"dataset": "digitz"}, "SL-dataset-unloadable", "digits"),
    ):
        with pytest.raises(DataMissing) as failure:
            open_data(Config(run="try", **settings), 8)
        assert find_codes(failure.value) == [code] and told in str(failure.value)


def test_cifar_as_it_lies_on_the_hub(tmp_path):
    folder = build_cifar_like(tmp_path / "cifar100", classes=20, train=60, test=20)
    data, coarse = opened(folder, 224), opened(folder, 64, label_column="coarse_label")
    assert data.train.shape == (3, 32, 32) and data.train.image_size == 224 and data.train.classes == 20
    assert sizes(data) == [54, 6, 20] and data.class_names[:2] == ["fine0", "fine1"]
    assert list(data.test.labels) == list(range(20))
    assert len(coarse.class_names) == 4 and list(coarse.test.labels) == [i % 4 for i in range(20)]
    # the same images whatever they are resized to later
    assert coarse.sha256 != data.sha256 == opened(folder, 64).sha256


def test_the_short_names_stand_for_the_hub_s(monkeypatch):
    asked = []

    def load_dataset(name):
        asked.append(name)
        plain, fine = table(pngs(20), [0, 1] * 10), name.endswith("cifar100")
        named = plain.rename_columns({"image": "img", "label": "fine_label"}) if fine else plain
        return datasets.DatasetDict({"train": named, "test" if fine else "validation": named})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("cifar100", "food101", "someone/pets"):
        assert sizes(open_data(Config(run="try", dataset=name), 8)) == [18, 2, 20]
    assert asked == ["uoft-cs/cifar100", "ethz/food101", "someone/pets"]


def test_large_images_are_stored_as_squares_of_8_7_of_the_size_that_is_wanted(tmp_path):
    """The middle of them; the edge of the source is the median of the shorter ones."""
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(4):
            Image.new("RGB", (40 + 10 * i, 80)).save(tmp_path / label / f"{i}.png")
    data = opened(tmp_path, 28)
    assert data.train.shape == (3, 32, 32) and data.source_edge == 55  # 40, 50, 60, 70, twice
    assert opened(tmp_path, 96).train.shape == (3, 110, 110)


def test_synthetic_images_come_from_their_index():
    first, second = (open_data(Config(run="try", dataset="synthetic", seed=seed), 32) for seed in (0, 1))
    assert sizes(first) == [1800, 200, 400] and first.sha256 == second.sha256 and first.source_edge is None
    many = open_data(Config(run="try", dataset="synthetic", train_samples=3000), 128)
    assert len(many.train) == 3000 and many.train.shape == (3, 64, 64) and many.train.image_size == 128
    seen = {s.pixels(np.array([i])).tobytes() for s in (first.train, first.test) for i in range(100)}
    assert len(seen) == 200
