"""A class is its name, in every split and in every layout; a split is what people call it."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest

from stratlab_spec.exit_codes import DataMissing
from tests.codes import find_codes
from tests.trainer.data import pictures
from tests.trainer.data.pictures import ABC, BROKEN, TEXT, png, save, sizes, write
from trainer.data.files import choose_splits
from trainer.data.images import ImageData

COLOURS = {"ape": (250, 0, 0), "bee": (0, 250, 0), "cow": (0, 0, 250), "train": (9, 9, 9)}
TRAIN = ABC.names * 4


def write_pictures(folder: Path, *names: str) -> None:
    for name in names:
        colour = COLOURS.get(name.rpartition("/")[2], (0, 0, 0))
        write(folder, {f"{name}/{index}.png": png(colour) for index in range(4)})


def table(names: list[str], classes: list[str] | None) -> datasets.Dataset:
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


def opened(folder: Path) -> ImageData:
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
    splits = {"train": table(TRAIN, train), "test": table(["bee", "cow"] * 3, test)}
    layout(tmp_path / "d", **splits, validation=table(["cow", "bee"] * 2, ["cow", "bee"]))
    data = opened(tmp_path / "d")
    assert sizes(data) == [12, 4, 6] and sorted(data.class_names) == ABC.names


def test_the_usual_names_of_splits_are_read_in_any_case(tmp_path):
    write_pictures(tmp_path / "d", *(f"Training/{name}" for name in ABC.names), "VAL/bee", "VAL/cow")
    data = opened(tmp_path / "d")
    assert data.class_names == ABC.names and sizes(data)[2] == 8
    rows = {"Train": table(TRAIN, ABC.names), "Test": table(["bee", "cow"], ["bee", "cow"])}
    for split, each in rows.items():
        (tmp_path / "e" / split).mkdir(parents=True)
        each.to_parquet(str(tmp_path / "e" / split / "rows.parquet"))
    assert sizes(opened(tmp_path / "e"))[2] == 2


def test_a_saved_split_val_validates_and_others_are_named(tmp_path):
    rows = table(TRAIN, ABC.names)
    data = opened(save(tmp_path / "d", train=rows, val=rows, test=rows, extra=rows))
    assert sizes(data) == [12, 12, 12] and [note for note in data.notes if "extra" in note]
    assert sum(sizes(opened(save(tmp_path / "e", test=rows)))) == 12, "no sample is trained and tested"


def test_pictures_that_metadata_does_not_list_are_counted(tmp_path):
    rows = table(TRAIN, None)
    metadata(tmp_path, train=rows, test=rows)
    assert not opened(tmp_path).notes
    for name in ("x.png", "y.JPG", "._x.png"):  # the last is a Mac's, and no picture
        write(tmp_path / "test", {name: png(COLOURS["ape"])})
    (note,) = opened(tmp_path).notes
    assert " 2 of 26 " in note and "test/x.png" in note and "test/y.JPG" in note


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
    hub(tmp_path, train=table(TRAIN, ABC.names))
    table(TRAIN, ABC.names[::-1]).to_parquet(str(tmp_path / "data" / "train-00001-of-00002.parquet"))
    with pytest.raises(DataMissing) as failure:
        opened(tmp_path)
    assert find_codes(failure.value) == ["SL-split-classes-differ"]


def test_which_folders_are_classes(tmp_path):
    write_pictures(tmp_path / "a", "bee", "train")  # a class may be called so
    assert opened(tmp_path / "a").class_names == ["bee", "train"]
    write_pictures(tmp_path / "b", "train/wild/ape", "train/wild/bee", "train/tame/cow", "test/cow")
    hidden = (".thumbs/ape/0.png", "__MACOSX/train/ape/._0.png", "train/wild/ape/._1.png")
    write(tmp_path / "b", dict.fromkeys(hidden, BROKEN))
    assert opened(tmp_path / "b").class_names == ABC.names


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
    with pytest.raises(DataMissing) as failure:
        opened(tmp_path)
    assert find_codes(failure.value) == [code] and named in str(failure.value)
