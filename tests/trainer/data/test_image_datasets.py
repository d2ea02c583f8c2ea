"""Data sets as people have them on disk or on the hub, and those that are built in."""

from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes, refuses
from tests.trainer.data import pictures
from tests.trainer.data.pictures import (
    ABC,
    BROKEN,
    TEXT,
    opened,
    png,
    pngs,
    save,
    sizes,
    table,
    write,
)
from trainer.data import open_data
from trainer.data.files import choose_splits
from trainer.data.images import ImageData


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
    made = open_data(Config(run="try", dataset="synthetic", train_samples=50, validation_fraction=0.1), 8)
    assert sizes(made) == [50, 5, 400]


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


@pytest.mark.parametrize(
    "kind", [datasets.Value("binary"), {"bytes": datasets.Value("binary")} | {"path": TEXT}]
)
def test_the_only_column_of_files_holds_the_images(kind, tmp_path):
    cells = [{"bytes": each, "path": None} if isinstance(kind, dict) else each for each in pngs(20)]
    features = datasets.Features({"scan": kind, "id": TEXT, "label": ABC})
    rows = {"scan": cells, "id": ["x"] * 20, "label": [0, 1] * 10}
    save(tmp_path / "t", train=datasets.Dataset.from_dict(rows, features=features))
    assert sum(sizes(opened(tmp_path / "t", 8))) == 20


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
        with refuses(DataMissing, code, told):
            open_data(Config(run="try", **settings), 8)


def test_large_images_are_stored_as_squares_of_8_7_of_the_size_that_is_wanted(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(4):
            Image.new("RGB", (40 + 10 * i, 80)).save(tmp_path / label / f"{i}.png")
    data = opened(tmp_path, 28)
    assert data.train.shape == (3, 32, 32) and data.source_edge == 55  # 40, 50, 60, 70, twice
    assert opened(tmp_path, 96).train.shape == (3, 110, 110)


COLOURS = {"ape": (250, 0, 0), "bee": (0, 250, 0), "cow": (0, 0, 250), "train": (9, 9, 9)}
TRAIN = ABC.names * 4


def write_pictures(folder: Path, *names: str) -> None:
    for name in names:
        colour = COLOURS.get(name.rpartition("/")[2], (0, 0, 0))
        write(folder, {f"{name}/{index}.png": png(colour) for index in range(4)})


def table_of_names(names: list[str], classes: list[str] | None) -> datasets.Dataset:
    """Pictures of these names; `classes` are those that the table declares, None = text labels."""
    kind = datasets.ClassLabel(names=classes) if classes else TEXT
    labels = [classes.index(name) for name in names] if classes else names
    return pictures.table([png(COLOURS[name]) for name in names], labels, kind)


def hub(folder: Path, **splits: datasets.Dataset) -> None:
    (folder / "data").mkdir(parents=True)
    for split, rows in splits.items():
        rows.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))


def metadata(folder: Path, **splits: datasets.Dataset) -> None:
    for split, rows in splits.items():
        kind, lines = rows.features["label"], ["file_name,label"]
        for index, row in enumerate(rows.cast_column("image", datasets.Image(decode=False))):
            write(folder, {f"{split}/{index}.png": row["image"]["bytes"]})
            name = kind.int2str(row["label"]) if isinstance(kind, datasets.ClassLabel) else row["label"]
            lines.append(f"{index}.png,{name}")
        (folder / split / "metadata.csv").write_text("\n".join(lines) + "\n")


def opened_by_colour(folder: Path) -> ImageData:
    """Where the colour of every picture says its class."""
    data = pictures.opened(folder)
    for part in (data.train, data.validation, data.test):
        for pixels, code in zip(part.pixels(np.arange(len(part))), part.labels, strict=True):
            assert tuple(pixels[:, 0, 0]) == COLOURS[data.class_names[code]]
    return data


@pytest.mark.parametrize(
    ("layout", "train", "test"),
    [
        (save, ABC.names, ["bee", "cow"]),
        (hub, ABC.names, ["cow", "bee", "ape"]),
        (metadata, ABC.names, None),
        (hub, None, ["bee", "cow"]),
    ],
    ids=["without a class", "another order", "test by text", "train by text"],
)
def test_the_codes_of_a_split_are_read_with_its_own_names(tmp_path, layout, train, test):
    splits = {"train": table_of_names(TRAIN, train), "test": table_of_names(["bee", "cow"] * 3, test)}
    layout(tmp_path / "d", **splits, validation=table_of_names(["cow", "bee"] * 2, ["cow", "bee"]))
    data = opened_by_colour(tmp_path / "d")
    assert sizes(data) == [12, 4, 6] and sorted(data.class_names) == ABC.names


def test_the_usual_names_of_splits_are_read_in_any_case(tmp_path):
    write_pictures(tmp_path / "d", *(f"Training/{name}" for name in ABC.names), "VAL/bee", "VAL/cow")
    data = opened_by_colour(tmp_path / "d")
    assert data.class_names == ABC.names and sizes(data)[2] == 8
    rows = {"Train": table_of_names(TRAIN, ABC.names), "Test": table_of_names(["bee", "cow"], ["bee", "cow"])}
    for split, each in rows.items():
        (tmp_path / "e" / split).mkdir(parents=True)
        each.to_parquet(str(tmp_path / "e" / split / "rows.parquet"))
    assert sizes(opened_by_colour(tmp_path / "e"))[2] == 2


@pytest.mark.parametrize(
    ("tables", "code"),
    [
        ({"validation": [1], "test": [1]}, "SL-split-train-absent"),
        ({"train": [1], "testing": [1], "eval": [1]}, "SL-split-twice"),
        ({"train": [1], "test": []}, "SL-split-empty"),
    ],
)
def test_splits_that_cannot_be_used_are_refused(tables, code):
    with refuses(DataMissing, code):
        choose_splits(tables, "d")


def test_files_of_one_split_that_number_their_classes_differently_are_refused(tmp_path):
    hub(tmp_path, train=table_of_names(TRAIN, ABC.names))
    table_of_names(TRAIN, ABC.names[::-1]).to_parquet(str(tmp_path / "data" / "train-00001-of-00002.parquet"))
    with refuses(DataMissing, "SL-split-classes-differ"):
        opened_by_colour(tmp_path)


def test_which_folders_are_classes(tmp_path):
    write_pictures(tmp_path / "a", "bee", "train")  # a class may be called so
    assert opened_by_colour(tmp_path / "a").class_names == ["bee", "train"]
    write_pictures(tmp_path / "b", "train/wild/ape", "train/wild/bee", "train/tame/cow", "test/cow")
    hidden = (".thumbs/ape/0.png", "__MACOSX/train/ape/._0.png", "train/wild/ape/._1.png")
    write(tmp_path / "b", dict.fromkeys(hidden, BROKEN))
    assert opened_by_colour(tmp_path / "b").class_names == ABC.names


@pytest.mark.parametrize(
    ("folders", "named", "code"),
    [
        (("train/a/ape", "train/b/ape"), "train/a/ape and train/b/ape", "SL-class-folder-twice"),
        (("train/ape", "train/bee/cow"), "train/bee/cow/0.png", "SL-folder-depths"),
        (("train/ape", "train/bee", "cow"), "cow", "SL-folder-beside-splits"),
        (("train/ape", "train/bee", "Train/cow"), "Train, train", "SL-split-folder-twice"),
        (("train", "test/ape", "test/bee"), "train/ ", "SL-folder-unlabelled"),
        ((".",), "0.png", "SL-folder-unlabelled"),
        (("ape",), "ape", "SL-folder-one-class"),
        (("train/ape", "train/bee", "test/bee", "."), "0.png", "SL-picture-beside-splits"),
    ],
)
def test_folders_that_could_be_read_in_two_ways_are_refused(tmp_path, folders, named, code):
    write_pictures(tmp_path, *folders)
    with refuses(DataMissing, code, named):
        opened_by_colour(tmp_path)
