"""A class is its name, in every split and in every layout; a split is what people call it."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.codes import find_codes
from trainer.data import open_data
from trainer.data.images import ImageData
from trainer.data.split_names import choose_splits
from trainer.failures import DataMissing
from trainer.settings.config import Config

COLOURS = {"ape": (250, 0, 0), "bee": (0, 250, 0), "cow": (0, 0, 250), "train": (9, 9, 9), "test": (9, 9, 9)}
CLASSES = ["ape", "bee", "cow"]
TRAIN = CLASSES * 4
EDGE = 4


def picture(name: str) -> Image.Image:
    found = Image.new("RGB", (EDGE, EDGE), COLOURS[name])
    found.putpixel((EDGE - 1, EDGE - 1), (255, 255, 255))
    return found


def write_pictures(folder: Path, *names: str, count: int = 4) -> None:
    for index in range(count):
        for name in names:
            file = folder / name / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(Path(name).name).save(file)


def table(names: list[str], classes: list[str] | None) -> datasets.Dataset:
    """Pictures of these names; `classes` are those that the table declares, None = text labels."""
    label = datasets.ClassLabel(names=classes) if classes else datasets.Value("string")
    features = datasets.Features({"image": datasets.Image(), "label": label})
    labels = [classes.index(name) for name in names] if classes else names
    rows = {"image": [picture(name) for name in names], "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


def saved(folder: Path, splits: dict[str, datasets.Dataset]) -> None:
    datasets.DatasetDict(splits).save_to_disk(str(folder))


def hub(folder: Path, splits: dict[str, datasets.Dataset]) -> None:
    (folder / "data").mkdir(parents=True)
    for split, rows in splits.items():
        rows.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))


def metadata(folder: Path, splits: dict[str, datasets.Dataset]) -> None:
    for split, rows in splits.items():
        kind, lines = rows.features["label"], ["file_name,label"]
        (folder / split).mkdir(parents=True)
        for index, row in enumerate(rows):
            row["image"].save(folder / split / f"{index}.png")
            name = kind.int2str(row["label"]) if isinstance(kind, datasets.ClassLabel) else row["label"]
            lines.append(f"{index}.png,{name}")
        (folder / split / "metadata.csv").write_text("\n".join(lines) + "\n")


def opened(folder: Path) -> ImageData:
    """The colour of every picture says its class."""
    data = open_data(Config(run="try", dataset_path=str(folder)), EDGE)
    for part in (data.train, data.validation, data.test):
        for pixels, code in zip(part.pixels(np.arange(len(part))), part.labels, strict=True):
            assert tuple(pixels[:, 0, 0]) == COLOURS[data.class_names[code]]
    return data


@pytest.mark.parametrize(
    ("layout", "train", "test"),
    [
        (saved, CLASSES, ["bee", "cow"]),
        (hub, CLASSES, ["cow", "bee", "ape"]),
        (metadata, CLASSES, None),
        (hub, None, ["bee", "cow"]),
    ],
    ids=["without a class", "another order", "test by text", "train by text"],
)
def test_the_codes_of_a_split_are_read_with_its_own_names(tmp_path, layout, train, test):
    splits = {"train": table(TRAIN, train), "test": table(["bee", "cow"] * 3, test)}
    layout(tmp_path / "d", splits | {"validation": table(["cow", "bee"] * 2, ["cow", "bee"])})
    data = opened(tmp_path / "d")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12, 4, 6]
    assert sorted(data.class_names) == CLASSES


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "VAL")])
def test_the_usual_names_of_splits_are_read_in_any_case(tmp_path, names):
    write_pictures(tmp_path / "d" / names[0], *CLASSES)
    write_pictures(tmp_path / "d" / names[1], "bee", "cow", count=3)
    data = opened(tmp_path / "d")
    assert data.class_names == CLASSES and len(data.test) == 6
    assert len(data.train) + len(data.validation) == 12


def test_so_are_those_of_folders_of_files(tmp_path):
    for split, rows in {
        "Train": table(TRAIN, CLASSES),
        "Test": table(["bee", "cow"], ["bee", "cow"]),
    }.items():
        (tmp_path / "d" / split).mkdir(parents=True)
        rows.to_parquet(str(tmp_path / "d" / split / "rows.parquet"))
    assert len(opened(tmp_path / "d").test) == 2


def test_a_saved_split_val_validates_and_others_are_named(tmp_path):
    rows = table(TRAIN, CLASSES)
    saved(tmp_path / "d", {"train": rows, "val": rows, "test": rows, "extra": rows})
    data = opened(tmp_path / "d")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12, 12, 12]
    assert [note for note in data.notes if "extra" in note]


def test_pictures_that_metadata_does_not_list_are_counted(tmp_path):
    folder, rows = tmp_path / "d", table(TRAIN, None)
    metadata(folder, {"train": rows, "test": rows})
    assert not opened(folder).notes
    for name in ("x.png", "y.JPG", "._x.png"):  # the last is a Mac's, and no picture
        picture("ape").save(folder / "test" / name)
    (note,) = opened(folder).notes
    assert " 2 of 26 " in note and "test/x.png" in note and "test/y.JPG" in note


def test_a_test_split_alone_is_not_trained_and_tested_with_the_same_samples(tmp_path):
    saved(tmp_path / "d", {"test": table(TRAIN, CLASSES)})
    data = opened(tmp_path / "d")
    assert len(data.train) + len(data.validation) + len(data.test) == 12


@pytest.mark.parametrize(
    ("tables", "code"),
    [
        ({"validation": [1], "test": [1]}, "SL-split-train-absent"),
        ({"train": [1], "testing": [1], "eval": [1]}, "SL-split-twice"),
        ({"train": [1], "test": []}, "SL-split-empty"),
    ],
)
def test_splits_that_cannot_be_used_are_refused(tables, code):
    with pytest.raises(DataMissing) as failure:
        choose_splits(tables, "d")
    assert find_codes(failure.value) == [code]


def test_files_of_one_split_that_number_their_classes_differently_are_refused(tmp_path):
    hub(tmp_path / "d", {"train": table(TRAIN, CLASSES)})
    other = tmp_path / "d" / "data" / "train-00001-of-00002.parquet"
    table(TRAIN, CLASSES[::-1]).to_parquet(str(other))
    with pytest.raises(DataMissing) as failure:
        opened(tmp_path / "d")
    assert find_codes(failure.value) == ["SL-split-classes-differ"]


def test_which_folders_are_classes(tmp_path):
    write_pictures(tmp_path / "a", "bee", "train")  # a class may be called so
    assert opened(tmp_path / "a").class_names == ["bee", "train"]
    write_pictures(tmp_path / "b" / "train", "wild/ape", "wild/bee", "tame/cow")
    write_pictures(tmp_path / "b" / "test", "cow", "bee")
    for name in (".thumbs/ape/0.png", "__MACOSX/train/ape/._0.png", "train/wild/ape/._1.png"):
        (tmp_path / "b" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "b" / name).write_bytes(b"no picture")
    data = opened(tmp_path / "b")
    assert data.class_names == CLASSES and len(data.test) == 8


@pytest.mark.parametrize(
    ("folders", "named", "code"),
    [
        (("train/a/ape", "train/b/ape"), "train/a/ape and train/b/ape", "SL-class-folder-twice"),
        (("train/ape", "train/bee/cow"), "train/bee/cow/0.png", "SL-folder-depths"),
        (("train/ape", "train/bee", "cow"), "cow", "SL-folder-beside-splits"),
        (("train/ape", "train/bee", "Train/cow"), "Train, train", "SL-split-folder-twice"),
        (("train", "test/ape", "test/bee"), "train/ ", "SL-folder-unlabelled"),
        (("",), "0.png", "SL-folder-unlabelled"),
        (("ape",), "ape", "SL-folder-one-class"),
        (("train/ape", "train/bee", "test/bee", ""), "0.png", "SL-picture-beside-splits"),
    ],
)
def test_folders_that_could_be_read_in_two_ways_are_refused(tmp_path, monkeypatch, folders, named, code):
    monkeypatch.setitem(COLOURS, "d", (9, 9, 9))
    for folder in folders:
        where = tmp_path / "d" / folder
        write_pictures(where.parent, where.name)
    with pytest.raises(DataMissing) as failure:
        opened(tmp_path / "d")
    assert find_codes(failure.value) == [code] and named in str(failure.value)
