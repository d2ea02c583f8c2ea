"""Faults of labels: refused before a run, with split, sample and value."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from tests.codes import find_codes
from trainer import failures
from trainer.data import open_data
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


def png(index: int) -> bytes:
    content, picture = io.BytesIO(), Image.new("RGB", (4, 4), (index * 20, 0, 9))
    picture.putpixel((0, 0), (255, 255, 255))
    picture.save(content, "png")
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


def as_saved(folder: Path, tables: dict[str, pa.Table]) -> None:
    found = {split: datasets.Dataset(table) for split, table in tables.items()}
    datasets.DatasetDict(found).save_to_disk(str(folder))


def config(folder: Path, **more: Any) -> Config:
    return Config(run="try", dataset_path=str(folder), **more)


def refused(folder: Path, code: int = failures.DATA_MISSING, **more: Any) -> str:
    with pytest.raises((failures.DataMissing, ConfigError)) as failure:
        open_data(config(folder, **more), 4)
    assert failures.exit_code(failure.value) == code
    return str(failure.value)


@pytest.mark.parametrize(
    ("kind", "split", "wrong", "code"),
    [
        (TEXT, "train", None, "SL-label-null"),
        (CLASSES, "train", None, "SL-label-null"),
        (REAL, "train", float("nan"), "SL-label-nan"),
        (CLASSES, "test", -1, "SL-label-code"),
        (CLASSES, "test", 3, "SL-label-code"),
        (WHOLE, "train", -1, "SL-label-negative"),
        (TEXT, "train", "", "SL-label-empty"),
        (REAL, "train", 0.5, "SL-label-fraction"),
        (TEXT, "test", "dog", "SL-label-untrained"),
        (LISTS, "train", [0], "SL-label-kind"),
    ],
)
def test_a_wrong_label_is_refused_with_split_sample_and_value(tmp_path, kind, split, wrong, code):
    labels = {"train": [*GOOD[kind]], "test": [*GOOD[kind]]}
    place = 0 if kind == LISTS else 4
    labels[split][place] = wrong
    in_files(tmp_path / "d", {each: rows(kind, found) for each, found in labels.items()})
    said = refused(tmp_path / "d")
    assert set(find_codes(said)) == {code}
    for part in (f"'{split}'", f"sample {place}", repr(wrong)):
        assert part in said


def test_prepare_refuses_it_too():
    labels = [*GOOD[TEXT][:4], None, "cow"]
    with pytest.raises(failures.DataMissing) as failure:
        check_images("/data/d", {"train": datasets.Dataset(rows(TEXT, labels))})
    assert find_codes(failure.value) == ["SL-label-null"] and "sample 4" in str(failure.value)


def test_a_split_without_the_column_is_named_unless_no_run_uses_it(tmp_path):
    table, lacking = rows(CLASSES, GOOD[CLASSES]), rows(CLASSES, None)
    as_saved(tmp_path / "d", {"train": table, "test": lacking})
    said = refused(tmp_path / "d")
    assert find_codes(said) == ["SL-split-column-absent"] and "'test'" in said and "'label'" in said
    as_saved(tmp_path / "e", {"train": table, "test": table, "unlabelled": lacking})
    assert len(open_data(config(tmp_path / "e"), 4).test) == 6


@pytest.mark.parametrize(("kind", "column"), [(LISTS, "label"), (WHOLE, "image")])
def test_a_column_that_was_asked_for_and_holds_no_classes_is_a_wrong_setting(tmp_path, kind, column):
    in_files(tmp_path / "d", {each: rows(kind, GOOD[kind]) for each in ("train", "test")})
    said = refused(tmp_path / "d", failures.BAD_CONFIG, label_column=column)
    assert find_codes(said) == ["SL-label-column-kind"] and f"TRAINER_LABEL_COLUMN='{column}'" in said


def test_all_faults_of_all_splits_are_named_at_once(tmp_path):
    labels = {"train": ["ape", None, "", None, "bee", "cow"], "test": ["dog"] * 6}
    in_files(tmp_path / "d", {split: rows(TEXT, found) for split, found in labels.items()})
    said = refused(tmp_path / "d")
    assert find_codes(said) == ["SL-label-null", "SL-label-empty", "SL-label-untrained"]
    for part in ("sample 1:", "2 such", "sample 2:", "'dog'", "6 such"):
        assert part in said


def test_odd_classes_are_one_line_each(tmp_path):
    labels = {"train": [0, 1, 0, 1, 0, 1], "test": [1] * 6}
    in_files(tmp_path / "d", {split: rows(CLASSES, found) for split, found in labels.items()})
    learnt, tested = open_data(config(tmp_path / "d"), 4).notes
    assert "'cow'" in learnt and "'ape'" not in learnt
    assert "'ape', 'cow'" in tested and "'bee'" not in tested
    in_files(tmp_path / "e", {"train": rows(TEXT, ["Left", "left", "right"] * 2)})
    assert any("'Left', 'left'" in note for note in open_data(config(tmp_path / "e"), 4).notes)


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
    data = open_data(config(tmp_path / "d"), 4)
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
    data = open_data(config(tmp_path / "d"), 4)
    assert data.class_names == ["ape", "chat\u00e9"] and not data.notes
