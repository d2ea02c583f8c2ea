"""What a run holds out is opened before it trains, and test pictures that are learnt too are counted."""

from __future__ import annotations

import io
import json
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.codes import find_codes
from trainer.data import open_data, opening
from trainer.data.images import SPLIT_SEED
from trainer.data.opening import check_held_out
from trainer.data.stored_pictures import StoredPictures
from trainer.evaluation.command import evaluate_run_directory
from trainer.failures import DataMissing
from trainer.launch.questions import main as answer
from trainer.prepare.pictures import check_images
from trainer.settings.config import Config

BROKEN = b"no picture"


def pictures(count: int, first: int = 0) -> list[bytes]:
    found = [io.BytesIO() for _ in range(count)]
    for number, content in enumerate(found, first):
        Image.new("RGB", (4, 4), (number % 256, number // 256, 9)).save(content, "png")
    return [content.getvalue() for content in found]


def write(folder: Path, **splits: list[bytes]) -> Path:
    """Two classes, alternately, in the order of the names."""
    for split, contents in splits.items():
        for index, content in enumerate(contents):
            file = folder / split / ("a" if index < len(contents) / 2 else "b") / f"{index:03}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return folder


def saved(folder: Path, **splits: list[bytes]) -> Path:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    tables = {}
    for split, contents in splits.items():
        cells = [{"bytes": content, "path": None} for content in contents]
        labels = [int(index >= len(contents) / 2) for index in range(len(contents))]
        tables[split] = datasets.Dataset.from_dict({"image": cells, "label": labels}, features=features)
    datasets.DatasetDict(tables).save_to_disk(str(folder))
    return folder


def settings(folder: Path) -> Config:
    sizes = {"image_size": 8, "global_batch_size": 8, "micro_batch_size": 8, "profile_steps": 0}
    return Config(run="try", dataset_path=str(folder), results=str(folder.parent / "results"), **sizes)


def check(folder: Path, **more: bool) -> list[str]:
    return check_held_out(open_data(settings(folder), 8), **more)


def refused(folder: Path) -> str:
    with pytest.raises(DataMissing) as failure:
        check(folder)
    assert find_codes(failure.value) == ["SL-picture-undecodable"]
    return str(failure.value)


@pytest.mark.parametrize(("layout", "split"), [(write, "test"), (saved, "validation")])
def test_a_broken_picture_of_a_held_out_split_is_found_before_a_step(tmp_path, layout, split):
    splits = {"train": pictures(40), "test": pictures(40, 100), "validation": pictures(40, 200)}
    splits[split][29] = BROKEN  # none of the sixteen that every start looks at
    said = refused(layout(tmp_path / "d", **splits))
    assert f"{split} sample 29" in said and (f"{split}/b/029.png" in said) == (layout is write)


def test_so_is_one_of_those_that_are_held_out_of_the_train_split(tmp_path):
    inside = sorted(np.random.default_rng(SPLIT_SEED).permutation(100)[:20])[12]
    contents = pictures(100)
    contents[inside] = BROKEN
    assert f"train sample {inside}" in refused(write(tmp_path / "d", train=contents))


@pytest.mark.parametrize("first", [0, 1], ids=["every start looks at one", "nothing else looks at them"])
def test_all_of_them_are_named_at_once_the_first_ten_by_their_files(tmp_path, first):
    test = pictures(40, 100)
    test[first:13] = [BROKEN] * (13 - first)
    said = refused(write(tmp_path / "d", train=pictures(40), test=test))
    assert f"{13 - first} of " in said and f"and {3 - first} more" in said
    assert said.count("test sample") == 10


def test_above_what_a_run_opens_it_says_so_unless_the_folder_was_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "AT_ONCE", 30)
    test = pictures(40, 100)
    test[29] = BROKEN
    folder = saved(tmp_path / "d", train=pictures(40), test=test)
    assert len(check(folder)) == 1 and check(folder, prepared=True) == []


def test_test_pictures_that_are_learnt_too_are_one_line(tmp_path):
    for layout in (write, saved):
        folder = layout(
            tmp_path / layout.__name__, train=pictures(40), test=[*pictures(3), *pictures(17, 100)]
        )
        (found,) = check(folder)
        assert " 3 of the 20 " in found
    assert check(write(tmp_path / "e", train=pictures(40), test=pictures(20, 100))) == []
    (found,) = check(write(tmp_path / "f", train=pictures(1, 7) * 20 + pictures(1, 8) * 20))
    assert " 8 of the 8 " in found  # held out of the train split


def test_prepare_opens_everything_with_progress_and_counts_them_too(tmp_path):
    noted, said = [], []
    splits = {"train": pictures(40), "test": [*pictures(3), *pictures(17, 100)]}
    tables = dict(datasets.load_from_disk(str(saved(tmp_path / "d", **splits))))
    check_images("/data/d", tables, noted.append, said.append)
    assert noted[-1].startswith("60 of 60 ") and [line for line in said if " 3 of the 20 " in line]
    splits["train"][5] = splits["test"][6] = BROKEN
    tables = dict(datasets.load_from_disk(str(saved(tmp_path / "e", **splits))))
    with pytest.raises(DataMissing) as failure:
        check_images("/data/e", tables)
    for part in ("2 of 60 ", "train sample 5 ", "test sample 6 "):
        assert part in str(failure.value)


def test_the_command_that_judges_weights_opens_the_test_split(tmp_path):
    splits = {"train": pictures(40), "test": pictures(40, 100), "validation": pictures(40, 200)}
    splits["test"][28] = splits["test"][29] = BROKEN
    config, run = settings(write(tmp_path / "d", **splits)), tmp_path / "results" / "default" / "try"
    (run / "model").mkdir(parents=True)
    described = {"stratlab_model": "cnn", "class_names": ["a", "b"], "channels": 3}
    (run / "model" / "config.json").write_text(json.dumps(described))
    (run / "config.json").write_text(json.dumps({"config": config.model_dump(), "resolved": {}}))
    with pytest.raises(DataMissing) as failure:
        evaluate_run_directory(run)
    assert "test sample 28" in str(failure.value) and "test sample 29" in str(failure.value)


def test_runs_of_a_sweep_that_hold_out_the_same_open_it_once(tmp_path, monkeypatch, capsys):
    config = settings(write(tmp_path / "d", train=pictures(40), test=pictures(40, 100)))
    given = {f"TRAINER_{k.upper()}": str(v) for k, v in config.model_dump(exclude_unset=True).items()}
    runs = {name: given | {"TRAINER_RUN": name} for name in ("one", "two")}
    opened, plain = [], StoredPictures.open
    monkeypatch.setattr(
        StoredPictures, "open", lambda self, index: opened.append(self.split) or plain(self, index)
    )
    counts = []
    for some in ({"one": runs["one"]}, runs):
        opened.clear()
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(some)))
        assert answer([]) == 0
        found = json.loads(capsys.readouterr().out)
        assert all(result["code"] == 0 for result in found.values()), found
        counts.append(opened.count("test"))
    assert counts[1] - counts[0] < 40 < counts[0]
