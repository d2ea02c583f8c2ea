"""What is refused or told before a run: wrong labels, broken or repeated pictures, images enlarged beyond sense."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes, refuses
from tests.trainer.data.pictures import ABC, BROKEN, TEXT, opened, pngs, save, table, write
from trainer.data.columns import ColumnNames, _judge, read_labels
from trainer.data.files import check_held_out, scale_problem
from trainer.data.images import SPLIT_SEED
from trainer.launch.preflight import check
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
    with refuses(failures.DataMissing, "SL-label-null", "sample 2"):
        check_images("/data/d", {"train": rows(["ape", "bee", None])})


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
    with refuses((failures.DataMissing, ConfigError), code, "'test'"):
        opened(tmp_path / "d", **settings)
    save(tmp_path / "e", train=rows(["ape", "bee"] * 3), unused=test)
    assert len(opened(tmp_path / "e", **settings).class_names) == 2


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
    found = read_labels({"train": rows(labels, kind)}, ColumnNames("image", "label", "d"))
    assert found.names == names and np.array_equal(found.codes["train"], np.argsort(np.argsort(labels)))


def lay(folder: Path, **splits: list[bytes]) -> Path:
    for split, contents in splits.items():
        half = len(contents) / 2
        write(folder, {f"{split}/{'ab'[i >= half]}/{i:03}.png": each for i, each in enumerate(contents)})
    return folder


def refused(folder: Path, test_alone: bool = False) -> str:
    with refuses(DataMissing, "SL-picture-undecodable") as failure:
        check_held_out(opened(folder), test_alone)
    return str(failure.value)


def test_broken_pictures_that_are_held_out_are_found_before_a_step(tmp_path):
    splits = {"train": pngs(40), "test": pngs(40, 100), "validation": pngs(40, 200)}
    splits["validation"][29] = BROKEN  # none of the sixteen that every start looks at
    folder = lay(tmp_path / "d", **splits)
    assert "validation sample 29" in (said := refused(folder)) and "validation/b/029.png" in said
    assert check_held_out(opened(folder), test_alone=True) == []
    inside = sorted(np.random.default_rng(SPLIT_SEED).permutation(100)[:20])[12]
    contents = pngs(100)
    contents[inside] = BROKEN
    assert f"train sample {inside}" in refused(lay(tmp_path / "e", train=contents), test_alone=True)


def test_test_pictures_that_are_learnt_too_are_counted(tmp_path):
    labels, test = [0, 1] * 20, [*pngs(3), *pngs(17, 100)]
    save(tmp_path / "d", train=table(pngs(40), labels), test=table(test, labels[:20]))
    (found,) = check_held_out(opened(tmp_path / "d"))
    assert " 3 of the 20 " in found
    (found,) = check_held_out(opened(lay(tmp_path / "f", train=pngs(1, 7) * 20 + pngs(1, 8) * 20)))
    assert " 8 of the 8 " in found  # held out of the train split


def config(**settings) -> Config:
    return Config(**{"run": "try"} | settings)


@pytest.mark.parametrize(
    ("source", "size", "fits"),
    [(32, 224, True), (32, 225, False), (512, 32, True), (513, 32, False), (None, 2048, True)],
)
def test_bounds(source, size, fits):
    assert (scale_problem(config(image_size=size), source, size) is None) == fits


def test_the_readmes_old_command_is_refused_with_the_settings_to_change(tmp_path):
    with pytest.raises(ConfigError) as failure:
        check(config(results=str(tmp_path), model="vit_huge", global_batch_size=512, epochs=1), 1, {})
    scale, profile = failure.value.problems
    assert find_codes(scale) == ["SL-image-scale"] and profile.startswith("TRAINER_PROFILE_STEPS=3")
    for part in ("TRAINER_IMAGE_SIZE=224", "vit_huge", "digits", " 8 pixels", "28 times", "1 to 56 pixels"):
        assert part in scale
