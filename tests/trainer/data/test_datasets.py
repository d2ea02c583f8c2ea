"""Data sets as people have them on disk: saved by `datasets`, folders of images, with odd columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.trainer.data.cifar_like import build_cifar_like
from trainer.data import open_data
from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError

NAMES = ["cat", "dog"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def picture(i: int) -> Image.Image:
    return Image.new("RGB", (6, 4), (i * 10 % 256, 0, 100))


def table(count: int, image: str = "image", label: str = "label") -> datasets.Dataset:
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(names=NAMES)})
    rows = {image: [picture(i) for i in range(count)], label: [i % 2 for i in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


def settings(path: Path, **more) -> Config:
    return Config(**{"run": "try", "dataset_path": str(path)} | more)


def test_digits_are_real_and_split_once():
    small, seeded = (open_data(Config(run="try", seed=seed), 16) for seed in (0, 1))
    assert [len(s) for s in (small.train, small.validation, small.test)] == [1294, 144, 359]
    assert small.sha256 == seeded.sha256 and small.channels == 1 and len(small.class_names) == 10
    pixels = small.test.pixels(np.arange(359))
    assert pixels.shape == (359, 1, 8, 8) and pixels.dtype == np.uint8 and small.test.image_size == 16
    assert 30 < pixels.mean() < 120


def test_the_digits_are_those_that_scikit_learn_reads():
    from sklearn.datasets import load_digits

    whole, data = load_digits(), open_data(Config(run="try"), 8)
    ours = Counter(
        (label, split.pixels(np.array([i])).tobytes())
        for split in (data.train, data.validation, data.test)
        for i, label in enumerate(split.labels.tolist())
    )
    pixels = np.round(whole.images * (255 / 16)).astype(np.uint8)
    assert ours == Counter((t, p.tobytes()) for t, p in zip(whole.target.tolist(), pixels, strict=True))
    assert data.class_names == [str(name) for name in whole.target_names]


def test_the_splits_do_not_overlap():
    data = open_data(Config(run="try"), 8)
    seen = [s.pixels(np.array([i])).tobytes() for s in (data.train, data.test) for i in range(len(s))]
    assert len(set(seen)) == len(seen)


def test_a_saved_data_set_with_its_own_splits(tmp_path):
    splits = {"train": table(20), "test": table(6)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "pets"))
    config = settings(tmp_path / "pets")
    data = open_data(config, 8)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [18, 2, 6]
    assert data.class_names == NAMES and config.dataset_name == "pets"
    pixels = data.test.pixels(np.array([3]))[0]
    # 6x4 pixels are no square: the middle, stored at 8/7 of the size that is wanted
    assert pixels.shape == (3, 10, 10) and tuple(pixels[:, 4, 4]) == (30, 0, 100)


def test_a_single_table_with_named_columns(tmp_path):
    table(20, "photo", "animal").save_to_disk(str(tmp_path / "one"))
    data = open_data(settings(tmp_path / "one", image_column="photo", label_column="animal"), 8)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [14, 2, 4]


def test_folders_of_images(tmp_path):
    for name in NAMES:
        for i in range(8):
            path = tmp_path / "pets" / "train" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(i).save(path)
    data = open_data(settings(tmp_path / "pets"), 8)
    assert data.class_names == NAMES and len(data.train) + len(data.validation) + len(data.test) == 16


def test_text_labels_are_numbered_in_order(tmp_path):
    rows = {"image": [picture(i) for i in range(10)], "label": ["b", "a"] * 5}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "t"))
    data = open_data(settings(tmp_path / "t"), 8)
    assert data.class_names == ["a", "b"] and set(data.train.labels) == {0, 1}


def test_a_cap_on_the_training_samples(tmp_path):
    datasets.DatasetDict({"train": table(20), "test": table(6)}).save_to_disk(str(tmp_path / "pets"))
    data = open_data(settings(tmp_path / "pets", train_samples=5), 8)
    assert len(data.train) == 5 and len(data.test) == 6


def test_the_fingerprint_sees_a_changed_label(tmp_path):
    first, second = table(20), table(20).map(lambda row: {"label": 1 - row["label"]})
    first.save_to_disk(str(tmp_path / "a"))
    second.save_to_disk(str(tmp_path / "b"))
    a, b = (open_data(settings(tmp_path / name), 8).sha256 for name in "ab")
    assert a != b and a == open_data(settings(tmp_path / "a"), 8).sha256


def test_a_missing_folder(tmp_path):
    with pytest.raises(DataMissing, match="TRAINER_DATASET_PATH='.*nowhere': no such folder"):
        open_data(settings(tmp_path / "nowhere"), 8)


def test_a_name_that_the_hub_does_not_have_is_compared_with_ours(monkeypatch):
    def find_none(name):
        raise ConnectionError(f"no {name} here")

    monkeypatch.setattr(datasets, "load_dataset", find_none)
    with pytest.raises(
        DataMissing, match="'digitz': cannot be loaded: no digitz here; did you mean digits[?]"
    ):
        open_data(Config(run="try", dataset="digitz"), 8)


def test_a_folder_without_data(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match="not a data set in `datasets` format"):
        open_data(settings(tmp_path / "empty"), 8)


def test_columns_that_are_not_there(tmp_path):
    table(20).save_to_disk(str(tmp_path / "pets"))
    with pytest.raises(ConfigError) as failure:
        open_data(settings(tmp_path / "pets", image_column="foto", label_column="klass"), 8)
    assert failure.value.problems == [
        "TRAINER_IMAGE_COLUMN='foto': the data set has the columns image, label",
        "TRAINER_LABEL_COLUMN='klass': the data set has the columns image, label",
    ]


def test_a_column_that_holds_no_images(tmp_path):
    table(20).save_to_disk(str(tmp_path / "pets"))
    with pytest.raises(ConfigError, match="TRAINER_IMAGE_COLUMN='label': holds .* not images"):
        open_data(settings(tmp_path / "pets", image_column="label"), 8)


def test_images_that_cannot_be_decoded(tmp_path):
    rows = {"image": [b"not a picture"] * 10, "label": [0, 1] * 5}
    features = datasets.Features(
        {"image": datasets.Value("binary"), "label": datasets.ClassLabel(names=NAMES)}
    )
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "bad"))
    said = "10 of 10 pictures cannot be decoded: train sample 0 [(]column .image.[)]: it is"
    with pytest.raises(DataMissing, match=said):
        open_data(settings(tmp_path / "bad"), 8)


def write_folder(folder: Path, classes: tuple[str, ...], count: int = 12) -> Path:
    for index in range(count):
        file = folder / classes[index % len(classes)] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(index).save(file)
    return folder


def test_a_file_that_cannot_be_decoded_is_named_with_its_folder_and_what_to_do(tmp_path):
    folder = write_folder(tmp_path / "pets", ("cat", "dog"))
    (folder / "dog" / "3.png").write_bytes(b"no picture")
    with pytest.raises(DataMissing) as failure:
        open_data(settings(folder), 8)
    said = str(failure.value)
    assert (
        said.startswith(f"TRAINER_DATASET_PATH='{folder}': train sample ") and f"({folder}/dog/3.png)" in said
    )
    assert said.endswith("cannot be decoded: it is no picture of a known format; remove or replace the file")


@pytest.mark.parametrize("classes", [("",), ("cat",)], ids=["flat", "one class"])
def test_a_folder_of_images_without_classes_says_how_they_must_lie(tmp_path, classes):
    folder = write_folder(tmp_path / "pets", classes)
    with pytest.raises(DataMissing) as failure:
        open_data(settings(folder), 8)
    said = str(failure.value)
    assert said.startswith(f"TRAINER_DATASET_PATH='{folder}': holds images and no classes")
    assert said.endswith("put the images into one folder per class, two classes at least")


def test_the_folder_that_hides_the_classes_of_all_is_named(tmp_path):
    folder = write_folder(tmp_path / "pets", ("cat", "dog"))
    (folder / "dog" / "sub").mkdir()
    (folder / "dog" / "3.png").rename(folder / "dog" / "sub" / "3.png")
    with pytest.raises(DataMissing, match="dog/sub/3.png; put the images into one folder per class"):
        open_data(settings(folder), 8)


def test_a_folder_of_text_is_called_so(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_text('{"query": "1+1", "response": "2"}\n' * 8)
    with pytest.raises(ConfigError) as failure:
        open_data(settings(tmp_path / "texts"), 8)
    (problem,) = failure.value.problems
    assert "holds text (columns query, response), and this model learns images" in problem
    assert "TRAINER_MODEL=qwen_tiny, or charts/llm-1d" in problem
    assert problem.endswith("where TRAINER_MODEL_PATH is one, TRAINER_TASK=text")


def test_cifar_as_it_lies_on_the_hub(tmp_path):
    folder = build_cifar_like(tmp_path / "cifar100", classes=20, train=60, test=20)
    data = open_data(settings(folder), 224)
    assert data.train.shape == (3, 32, 32) and data.train.image_size == 224 and data.channels == 3
    assert data.class_names[:2] == ["fine0", "fine1"] and data.train.classes == 20
    assert [len(s) for s in (data.train, data.validation, data.test)] == [54, 6, 20]
    assert list(data.test.labels) == list(range(20))
    coarse = open_data(settings(folder, label_column="coarse_label"), 224)
    assert len(coarse.class_names) == 4 and list(coarse.test.labels) == [i % 4 for i in range(20)]
    assert coarse.sha256 != data.sha256
    # the same images whatever they are resized to later
    assert open_data(settings(folder), 64).sha256 == data.sha256


def test_the_short_names_stand_for_the_hub_s(monkeypatch):
    asked = []

    def load_dataset(name):  # a stand-in for the hub
        asked.append(name)
        image = {"cifar100": "img"}.get(name.split("/")[1], "image")
        label = {"cifar100": "fine_label"}.get(name.split("/")[1], "label")
        splits = ("train", "test") if label == "fine_label" else ("train", "validation")
        return datasets.DatasetDict({split: table(20, image, label) for split in splits})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("cifar100", "food101", "someone/pets"):
        data = open_data(Config(run="try", dataset=name), 8)
        assert [len(s) for s in (data.train, data.validation, data.test)] == [18, 2, 20]
    assert asked == ["uoft-cs/cifar100", "ethz/food101", "someone/pets"]


def test_images_of_many_sizes_are_cut_to_one(tmp_path):
    pictures = [Image.new("RGB", (40 + i, 90), (i, i, i)) for i in range(20)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    rows = {"image": pictures, "label": [0, 1] * 10}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "food"))
    data = open_data(settings(tmp_path / "food"), 28)
    assert data.train.shape == (3, 32, 32) and data.train.pixels(np.arange(14)).shape == (14, 3, 32, 32)


def test_large_images_of_one_size_are_stored_smaller(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    rows = {"image": [Image.new("RGB", (100, 100))] * 10, "label": [0, 1] * 5}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "big"))
    assert open_data(settings(tmp_path / "big"), 56).train.shape == (3, 64, 64)
    assert open_data(settings(tmp_path / "big"), 96).train.shape == (3, 100, 100)


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        (
            {"photo": datasets.Image(), "scan": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)},
            "TRAINER_IMAGE_COLUMN: name one of the columns photo, scan, label; photo, scan could be meant",
        ),
        (
            {"image": datasets.Image(), "kind": datasets.Value("string")},
            "TRAINER_LABEL_COLUMN: name one of the columns image, kind; none is of type ClassLabel",
        ),
    ],
)
def test_columns_that_cannot_be_told(tmp_path, features, problem):
    values = {datasets.Image: picture(0), datasets.ClassLabel: 0, datasets.Value: "cat"}
    rows = {name: [values[type(feature)]] * 4 for name, feature in features.items()}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).save_to_disk(str(tmp_path / "t"))
    with pytest.raises(ConfigError) as failure:
        open_data(settings(tmp_path / "t"), 8)
    assert failure.value.problems == [problem]


def test_synthetic_images_come_from_their_index():
    first, second = (open_data(Config(run="try", dataset="synthetic", seed=seed), 32) for seed in (0, 1))
    assert [len(s) for s in (first.train, first.validation, first.test)] == [1800, 200, 400]
    assert first.sha256 == second.sha256 and first.train.shape == (3, 32, 32) and len(first.class_names) == 10
    many = open_data(Config(run="try", dataset="synthetic", train_samples=3000), 128)
    assert len(many.train) == 3000 and many.train.shape == (3, 64, 64) and many.train.image_size == 128
    seen = {s.pixels(np.array([i])).tobytes() for s in (first.train, first.test) for i in range(100)}
    assert len(seen) == 200
