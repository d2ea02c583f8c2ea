"""Faults of labels: refused before a run, with split, sample and value."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest

from stratlab_spec import exit_codes as failures
from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from tests.trainer.data.pictures import ABC, TEXT, opened, pngs, save, table, write
from trainer.data.columns import Columns, _judge, read_labels
from trainer.prepare.origin import check_images

WHOLE, REAL = datasets.Value("int64"), datasets.Value("float64")
LISTS = datasets.List(WHOLE)


def rows(labels: list[Any], kind: Any = TEXT) -> datasets.Dataset:
    return table(pngs(len(labels)), labels, kind)


@pytest.mark.parametrize(
    ("value", "names", "code"),
    [
        (None, None, "SL-label-null"),
        (None, ["a"], "SL-label-null"),
        (-1, ["a"], "SL-label-code"),
        (1, ["a"], "SL-label-code"),
        (-1, None, "SL-label-negative"),
        (float("nan"), None, "SL-label-nan"),
        (0.5, None, "SL-label-fraction"),
        (" ", None, "SL-label-empty"),
        (b"x", None, "SL-label-type"),
    ],
)
def test_what_is_no_class(value, names, code):
    assert find_codes(_judge(value, names).why) == [code]


def test_all_wrong_labels_of_all_splits_are_named_with_split_sample_and_value(tmp_path):
    save(tmp_path / "d", train=rows(["ape", None, "", None, "bee"]), test=rows(["ape", *["dog"] * 6]))
    with pytest.raises(failures.DataMissing) as failure:
        opened(tmp_path / "d")
    assert failures.exit_code(failure.value) == failures.DATA_MISSING
    assert find_codes(failure.value) == ["SL-label-null", "SL-label-empty", "SL-label-untrained"]
    for part in ("'train': sample 1:", "None", "2 such", "sample 2:", "'test': sample 1:", "'dog'", "6 such"):
        assert part in str(failure.value)
    with pytest.raises(failures.DataMissing) as failure:
        check_images("/data/d", {"train": rows(["ape", "bee", None])})
    assert find_codes(failure.value) == ["SL-label-null"] and "sample 2" in str(failure.value)


@pytest.mark.parametrize(
    ("test", "settings", "code"),
    [
        (rows([[0]], LISTS), {}, "SL-label-kind"),
        (rows([[0]], LISTS), {"label_column": "label"}, "SL-label-column-kind"),
        (rows([0], ABC).remove_columns("label"), {}, "SL-split-column-absent"),
    ],
)
def test_a_split_whose_column_holds_no_classes_is_refused(tmp_path, test, settings, code):
    save(tmp_path / "d", train=rows(["ape", "bee"]), test=test)
    with pytest.raises((failures.DataMissing, ConfigError)) as failure:
        opened(tmp_path / "d", **settings)
    assert find_codes(failure.value) == [code] and "'test'" in str(failure.value)
    save(tmp_path / "e", train=rows(["ape", "bee"] * 3), unused=test)
    assert len(opened(tmp_path / "e", **settings).class_names) == 2


def test_odd_classes_are_one_line_each(tmp_path):
    save(tmp_path / "d", train=rows([0, 1] * 3, ABC), test=rows([1] * 6, ABC))
    learnt, tested = opened(tmp_path / "d").notes
    assert "'cow'" in learnt and "'ape'" not in learnt
    assert "'ape', 'cow'" in tested and "'bee'" not in tested
    save(tmp_path / "e", train=rows(["Left", "left", "right"] * 2))
    assert any("'Left', 'left'" in note for note in opened(tmp_path / "e").notes)


@pytest.mark.parametrize(
    ("kind", "labels", "names"),
    [
        (WHOLE, [10, 9, 2], ["2", "9", "10"]),
        (REAL, [1.0, 0.0, 2.0], ["0", "1", "2"]),
        (datasets.Value("bool"), [True, False], ["False", "True"]),
        (TEXT, ["b", "a"], ["a", "b"]),
    ],
)
def test_classes_have_their_own_order(kind, labels, names):
    found = read_labels({"train": rows(labels, kind)}, Columns("image", "label", "d"))
    assert found.names == names and np.array_equal(found.codes["train"], np.argsort(np.argsort(labels)))


def test_an_accent_written_in_two_ways_is_one_class(tmp_path):
    """macOS stores it as a character of its own; an archive from there beside a folder from Linux."""
    for split, name in (("train", "chat\u00e9"), ("test", "chate\u0301")):
        write(
            tmp_path / "d", {f"{split}/{label}/{i}.png": pngs(1)[0] for label in ("ape", name) for i in "012"}
        )
    data = opened(tmp_path / "d")
    assert data.class_names == ["ape", "chat\u00e9"] and not data.notes
