"""A class is its name, in every split and in every layout; a split is what people call it."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from trainer.data import open_data
from trainer.data.images import ImageData
from trainer.failures import DataMissing
from trainer.prepare.request import read_request
from trainer.prepare.work import prepare
from trainer.settings.config import Config

COLOURS = {"ape": (250, 0, 0), "bee": (0, 250, 0), "cow": (0, 0, 250)}
EDGE = 4


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def picture(name: str) -> Image.Image:
    return Image.new("RGB", (EDGE, EDGE), COLOURS[name])


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
    return datasets.Dataset.from_dict(
        {"image": [picture(name) for name in names], "label": labels}, features=features
    )


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


def opened(folder: Path, **more) -> ImageData:
    return open_data(Config(run="try", dataset_path=str(folder), **more), EDGE)


def assert_right(data: ImageData, splits: tuple[str, ...] = ("train", "validation", "test")) -> None:
    """The colour of every picture says its class."""
    for split in splits:
        part = getattr(data, split)
        for pixels, code in zip(part.pixels(np.arange(len(part))), part.labels, strict=True):
            assert tuple(pixels[:, 0, 0]) == COLOURS[data.class_names[code]], split


LAYOUTS = [saved, hub, metadata]
TRAIN = ["ape", "bee", "cow"] * 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("train", "test"),
    [
        (["ape", "bee", "cow"], ["bee", "cow"]),
        (["ape", "bee", "cow"], ["cow", "bee", "ape"]),
        (["ape", "bee", "cow"], None),
        (None, ["bee", "cow"]),
    ],
    ids=["without a class", "another order", "test by text", "train by text"],
)
def test_the_codes_of_a_split_are_read_with_its_own_names(tmp_path, layout, train, test):
    splits = {"train": table(TRAIN, train), "test": table(["bee", "cow"] * 3, test)}
    layout(tmp_path / "d", splits | {"validation": table(["cow", "bee"] * 2, ["cow", "bee"])})
    data = opened(tmp_path / "d")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12, 4, 6]
    assert sorted(data.class_names) == ["ape", "bee", "cow"]
    assert_right(data)


def test_a_class_of_a_test_split_alone_is_refused_with_its_place(tmp_path):
    saved(tmp_path / "d", {"train": table(["ape", "bee"] * 4, None), "test": table(["bee", "cow"], None)})
    with pytest.raises(DataMissing, match="split 'test': sample 1: .*'cow', no class of the split 'train'"):
        opened(tmp_path / "d")


def test_files_of_one_split_that_number_their_classes_differently_are_refused(tmp_path):
    hub(tmp_path / "d", {"train": table(TRAIN, ["ape", "bee", "cow"])})
    other = tmp_path / "d" / "data" / "train-00001-of-00002.parquet"
    table(TRAIN, ["cow", "bee", "ape"]).to_parquet(str(other))
    with pytest.raises(DataMissing, match="number their classes differently"):
        opened(tmp_path / "d")


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "VAL"), ("train", "testing")])
def test_the_usual_names_of_splits_are_read_in_any_case(tmp_path, names):
    write_pictures(tmp_path / "d" / names[0], *COLOURS)
    write_pictures(tmp_path / "d" / names[1], "bee", "cow", count=3)
    data = opened(tmp_path / "d")
    assert data.class_names == [*COLOURS] and len(data.test) == 6
    assert len(data.train) + len(data.validation) == 12
    assert_right(data)


@pytest.mark.parametrize("layout", [hub, metadata])
def test_so_are_those_of_folders_of_files(tmp_path, layout):
    splits = {"Train": table(TRAIN, ["ape", "bee", "cow"]), "Test": table(["bee", "cow"], ["bee", "cow"])}
    if layout is hub:
        for split, rows in splits.items():
            (tmp_path / "d" / split).mkdir(parents=True)
            rows.to_parquet(str(tmp_path / "d" / split / "rows.parquet"))
    else:
        layout(tmp_path / "d", splits)
    data = opened(tmp_path / "d")
    assert len(data.test) == 2 and len(data.train) + len(data.validation) == 12
    assert_right(data)


def test_a_saved_split_val_validates_and_others_are_named(tmp_path):
    rows = table(TRAIN, ["ape", "bee", "cow"])
    saved(tmp_path / "d", {"train": rows, "val": rows, "test": rows, "extra": rows})
    data = opened(tmp_path / "d")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12, 12, 12]
    assert [note for note in data.notes if "extra" in note]


def test_pictures_that_metadata_does_not_list_are_counted(tmp_path):
    folder, rows = tmp_path / "d", table(TRAIN, None)
    metadata(folder, {"train": rows, "test": rows})
    assert not [note for note in opened(folder).notes if "left out" in note]
    for name in ("x.png", "y.JPG", "._x.png"):  # the last is a Mac's, and no picture
        picture("ape").save(folder / "test" / name)
    said: list[str] = []
    for notes in (opened(folder).notes, said):
        if notes is said:
            (tmp_path / "results").mkdir()
            words = ["--dataset", str(folder), "--name", "d", "--to", str(tmp_path / "results")]
            prepare(read_request(words), said.append)
        (note,) = [each for each in notes if "left out" in each]
        assert " 2 of 26 " in note and "test/x.png" in note and "test/y.JPG" in note


def test_a_test_split_alone_is_not_trained_and_tested_with_the_same_samples(tmp_path):
    saved(tmp_path / "d", {"test": table(TRAIN, ["ape", "bee", "cow"])})
    data = opened(tmp_path / "d")
    assert len(data.train) + len(data.validation) + len(data.test) == 12


def test_two_splits_and_none_to_learn_are_refused(tmp_path):
    rows = table(TRAIN, ["ape", "bee", "cow"])
    saved(tmp_path / "d", {"validation": rows, "test": rows})
    with pytest.raises(DataMissing, match="no split train"):
        opened(tmp_path / "d")


def test_a_class_may_be_called_train(tmp_path, monkeypatch):
    monkeypatch.setitem(COLOURS, "train", (9, 9, 9))
    write_pictures(tmp_path / "d", "bee", "train")
    data = opened(tmp_path / "d")
    assert data.class_names == ["bee", "train"]
    assert_right(data)


def test_classes_may_lie_inside_other_folders(tmp_path):
    write_pictures(tmp_path / "d" / "train", "wild/ape", "wild/bee", "tame/cow")
    write_pictures(tmp_path / "d" / "test", "cow", "bee")
    data = opened(tmp_path / "d")
    assert data.class_names == [*COLOURS] and len(data.test) == 8
    assert_right(data)


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (("train/a/ape", "train/b/ape"), "train/a/ape and train/b/ape"),
        (("train/ape", "train/bee/cow"), "train/bee/cow/0.png"),
        (("train/ape", "train/bee", "cow"), "cow"),
        (("train/ape", "train/bee", "Train/cow"), "Train, train"),
        (("train",), "train/ "),
        (("train", "test"), "/ "),
    ],
    ids=[
        "one name twice",
        "several depths",
        "beside the splits",
        "two trains",
        "straight",
        "straight in both",
    ],
)
def test_folders_that_could_be_read_in_two_ways_are_refused(tmp_path, monkeypatch, folders, named):
    for name in ("train", "test"):
        monkeypatch.setitem(COLOURS, name, (9, 9, 9))
    for folder in folders:
        write_pictures(tmp_path / "d" / Path(folder).parent, Path(folder).name)
    with pytest.raises(DataMissing) as failure:
        opened(tmp_path / "d")
    assert named in str(failure.value)


def test_hidden_files_are_no_pictures(tmp_path):
    write_pictures(tmp_path / "d" / "train", *COLOURS)
    for name in (".thumbs/ape/0.png", "__MACOSX/train/ape/._0.png", "train/ape/._1.png"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"no picture")
    assert_right(opened(tmp_path / "d"))
