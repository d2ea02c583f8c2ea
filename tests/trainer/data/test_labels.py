"""Twelve faults of labels in every layout that can express them: refused before a run, with split, sample and value."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from trainer import failures
from trainer.data import open_data
from trainer.launch.preflight import check
from trainer.prepare.pictures import check_images
from trainer.settings.config import Config, ConfigError

CLASSES, TEXT, WHOLE, REAL, BOOLS, LISTS = "classes", "texts", "whole numbers", "numbers", "truths", "lists"
KINDS = {
    CLASSES: datasets.ClassLabel(names=["ape", "bee", "cow"]),
    TEXT: datasets.Value("string"),
    WHOLE: datasets.Value("int64"),
    REAL: datasets.Value("float64"),
    BOOLS: datasets.Value("bool"),
    LISTS: datasets.List(datasets.Value("int64")),
}
GOOD = {
    CLASSES: [0, 1, 2, 0, 1, 2],
    TEXT: ["ape", "bee", "cow"] * 2,
    WHOLE: [7, 8, 9] * 2,
    REAL: [0.0, 1.0, 2.0] * 2,
    LISTS: [[0], [1], [2]] * 2,
}


class Fault(NamedTuple):
    """One wrong label, at sample 4 of a split; `value` as the sentence shows it."""

    kind: str
    split: str
    wrong: Any
    value: str


FAULTS = {
    "null among texts": Fault(TEXT, "train", None, "None"),
    "null among whole numbers": Fault(WHOLE, "test", None, "None"),
    "null among classes": Fault(CLASSES, "train", None, "None"),
    "NaN": Fault(REAL, "train", float("nan"), "nan"),
    "-1 among classes, to learn": Fault(CLASSES, "train", -1, "-1"),
    "-1 among classes, to test": Fault(CLASSES, "test", -1, "-1"),
    "-1 among whole numbers": Fault(WHOLE, "train", -1, "-1"),
    "a code without a name": Fault(CLASSES, "test", 3, "3"),
    "an empty text": Fault(TEXT, "train", "", "''"),
    "no whole number": Fault(REAL, "train", 0.5, "0.5"),
    "a class that is not learnt": Fault(TEXT, "test", "dog", "'dog'"),
    "lists": Fault(LISTS, "train", [0], "[0]"),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def png(index: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (4, 4), (index * 20, 0, 9)).save(content, "png")
    return content.getvalue()


def rows(kind: str, labels: list[Any] | None) -> pa.Table:
    """As another program may have written them: nothing has looked at the labels."""
    features = datasets.Features(
        {"image": datasets.Image()} | ({} if labels is None else {"label": KINDS[kind]})
    )
    columns = {"image": [{"bytes": png(i), "path": None} for i in range(6)], "label": labels}
    arrays = [pa.array(columns[field.name], field.type, from_pandas=False) for field in features.arrow_schema]
    return pa.Table.from_arrays(arrays, schema=features.arrow_schema)


def in_files(folder: Path, tables: dict[str, pa.Table]) -> None:
    folder.mkdir()
    for split, table in tables.items():
        parquet.write_table(table, folder / f"{split}.parquet")


def as_on_the_hub(folder: Path, tables: dict[str, pa.Table]) -> None:
    (folder / "data").mkdir(parents=True)
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split, table in tables.items():
        parquet.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")
        lines += [f"  - split: {split}", f"    path: data/{split}-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))


def as_saved(folder: Path, tables: dict[str, pa.Table]) -> None:
    datasets.DatasetDict({split: datasets.Dataset(t) for split, t in tables.items()}).save_to_disk(
        str(folder)
    )


TABLES: list[Callable[[Path, dict[str, pa.Table]], None]] = [in_files, as_on_the_hub, as_saved]
# What a folder of pictures cannot express: its labels are names of folders, so none is null, a number, a list, NaN or
# a code. A class of the test split alone is one without training pictures there, and a missing column is a split whose
# pictures lie in no folder of a class.


def run(folder: Path, **more: Any) -> Config:
    return Config(run="try", dataset_path=str(folder), results=str(folder.parent / "results"), **more)


def refused(action: Callable[[], Any], code: int = failures.DATA_MISSING) -> str:
    with pytest.raises((failures.DataMissing, ConfigError)) as failure:
        action()
    assert failures.exit_code(failure.value) == code
    return str(failure.value)


@pytest.mark.parametrize("layout", TABLES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_label_is_refused_with_split_sample_and_value(tmp_path, layout, name):
    kind, split, wrong, value = FAULTS[name]
    labels = {"train": [*GOOD[kind]], "test": [*GOOD[kind]]}
    place = 0 if kind == LISTS else 4
    labels[split][place] = wrong
    layout(tmp_path / "d", {each: rows(kind, found) for each, found in labels.items()})
    said = refused(lambda: check(run(tmp_path / "d"), 1, {}))
    for part in (f"split '{split}'", f"sample {place}", value):
        assert part in said


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.kind != LISTS])
def test_prepare_refuses_it_too(tmp_path, name):
    kind, split, wrong, value = FAULTS[name]
    labels = {"train": [*GOOD[kind]], "test": [*GOOD[kind]]}
    labels[split][4] = wrong
    tables = {each: datasets.Dataset(rows(kind, found)) for each, found in labels.items()}
    said = refused(lambda: check_images("/data/d", tables))
    assert f"split '{split}'" in said and "sample 4" in said and value in said


@pytest.mark.parametrize("layout", TABLES)
def test_a_split_without_the_column_is_named(tmp_path, layout):
    layout(tmp_path / "d", {"train": rows(CLASSES, GOOD[CLASSES]), "test": rows(CLASSES, None)})
    said = refused(lambda: check(run(tmp_path / "d"), 1, {}))
    assert "'test'" in said and "'label'" in said


def test_a_split_that_no_run_uses_may_lack_labels(tmp_path):
    table = rows(CLASSES, GOOD[CLASSES])
    as_saved(tmp_path / "d", {"train": table, "test": table, "unlabelled": rows(CLASSES, None)})
    assert len(open_data(run(tmp_path / "d"), 4).test) == 6


@pytest.mark.parametrize("straight", ["train", "test"])
def test_pictures_straight_in_a_split_are_a_sentence(tmp_path, straight):
    for split in ("train", "test"):
        for index in range(4):
            file = tmp_path / "d" / split / ("" if split == straight else "ab"[index % 2]) / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(index))
    said = refused(lambda: check(run(tmp_path / "d"), 1, {}))
    assert f"{straight}/" in said and "one folder per class" in said


@pytest.mark.parametrize("layout", TABLES)
@pytest.mark.parametrize("kind", [LISTS, WHOLE])
def test_a_column_that_was_asked_for_and_holds_no_classes_is_a_wrong_setting(tmp_path, layout, kind):
    layout(tmp_path / "d", {each: rows(kind, GOOD[kind]) for each in ("train", "test")})
    column = "label" if kind == LISTS else "image"
    said = refused(lambda: check(run(tmp_path / "d", label_column=column), 1, {}), code=failures.BAD_CONFIG)
    assert f"TRAINER_LABEL_COLUMN='{column}'" in said


def test_all_faults_of_all_splits_are_named_at_once(tmp_path):
    in_files(
        tmp_path / "d",
        {"train": rows(TEXT, ["ape", None, "", None, "bee", "cow"]), "test": rows(TEXT, ["dog"] * 6)},
    )
    said = refused(lambda: open_data(run(tmp_path / "d"), 4))
    for part in ("sample 1", "2 such samples", "sample 2", "'dog'", "6 such samples"):
        assert part in said


def notes(folder: Path, words: str) -> list[str]:
    return [note for note in open_data(run(folder), 4).notes if words in note]


def test_a_class_without_pictures_to_learn_or_to_test_is_one_line(tmp_path):
    labels = {"train": [0, 1, 0, 1, 0, 1], "test": [1] * 6}
    in_files(tmp_path / "d", {split: rows(CLASSES, found) for split, found in labels.items()})
    (learnt,), (tested,) = (notes(tmp_path / "d", words) for words in ("training pictures", "test pictures"))
    assert "'cow'" in learnt and "'ape'" not in learnt
    assert "'ape', 'cow'" in tested and "'bee'" not in tested


def test_of_a_folder_a_class_of_the_test_split_alone_is_that_line(tmp_path):
    for split, names in (("train", "ab"), ("test", "bc")):
        for name in names:
            (tmp_path / "d" / split / name).mkdir(parents=True)
            for index in range(6):
                (tmp_path / "d" / split / name / f"{index}.png").write_bytes(png(index))
    (learnt,) = notes(tmp_path / "d", "training pictures")
    assert "'c'" in learnt


def test_names_that_differ_by_case_alone_are_one_line(tmp_path):
    in_files(tmp_path / "d", {"train": rows(TEXT, ["Left", "left", "right"] * 2)})
    (found,) = notes(tmp_path / "d", "by case")
    assert "'Left', 'left'" in found and "right" not in found


@pytest.mark.parametrize(
    ("kind", "labels", "names"),
    [
        (WHOLE, [10, 9, 10, 9, 2, 2], ["2", "9", "10"]),
        (REAL, [1.0, 0.0, 1.0, 0.0, 2.0, 2.0], ["0", "1", "2"]),
        (BOOLS, [True, False] * 3, ["False", "True"]),
    ],
)
def test_numbers_are_classes_in_their_own_order(tmp_path, kind, labels, names):
    in_files(tmp_path / "d", {"train": rows(kind, labels), "test": rows(kind, labels)})
    data = open_data(run(tmp_path / "d"), 4)
    assert data.class_names == names
    expected = [names.index(str(value) if isinstance(value, bool) else str(int(value))) for value in labels]
    assert np.array_equal(data.test.labels, expected)


def test_an_accent_written_in_two_ways_is_one_class(tmp_path):
    """macOS stores it as a character of its own; an archive from there beside a folder from Linux."""
    for split, accent in (("train", "\u00e9"), ("test", "e\u0301")):
        for index in range(6):
            file = tmp_path / "d" / split / ("ape", f"chat{accent}")[index % 2] / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(index))
    data = open_data(run(tmp_path / "d"), 4)
    assert data.class_names == ["ape", "chat\u00e9"]
    assert not notes(tmp_path / "d", "classes")
