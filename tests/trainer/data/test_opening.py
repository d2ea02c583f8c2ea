"""What a run holds out is opened before it trains, and test pictures that are learnt too are counted."""

from __future__ import annotations

import io
import json
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from trainer.data import open_data, opening
from trainer.data.images import SPLIT_SEED
from trainer.data.stored_pictures import StoredPictures
from trainer.evaluation.command import evaluate_run_directory
from trainer.failures import DataMissing
from trainer.launch.preflight import check
from trainer.launch.questions import main as answer
from trainer.prepare.pictures import check_images
from trainer.settings.config import Config

BROKEN = b"no picture"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def png(number: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (4, 4), (number % 256, number // 256, 9)).save(content, "png")
    return content.getvalue()


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
    tables = {
        split: datasets.Dataset.from_dict(
            {
                "image": [{"bytes": content, "path": None} for content in contents],
                "label": [int(index >= len(contents) / 2) for index in range(len(contents))],
            },
            features=features,
        )
        for split, contents in splits.items()
    }
    datasets.DatasetDict(tables).save_to_disk(str(folder))
    return folder


def settings(folder: Path, **more) -> Config:
    given = {"image_size": 8, "global_batch_size": 8, "micro_batch_size": 8, "profile_steps": 0} | more
    return Config(run="try", dataset_path=str(folder), results=str(folder.parent / "results"), **given)


def refused(config: Config) -> str:
    with pytest.raises(DataMissing) as failure:
        check(config, 1, {})
    return str(failure.value)


def pictures(count: int, first: int = 0) -> list[bytes]:
    return [png(first + i) for i in range(count)]


@pytest.mark.parametrize("layout", [write, saved])
@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_broken_picture_of_a_held_out_split_is_found_before_a_step(tmp_path, layout, split):
    splits = {"train": pictures(40), "test": pictures(40, 100), "validation": pictures(40, 200)}
    splits[split][29] = BROKEN  # none of the sixteen that every start looks at
    said = refused(settings(layout(tmp_path / "d", **splits)))
    assert f"{split} sample 29" in said and ("029.png" in said) == (layout is write)


def test_so_is_one_of_those_that_are_held_out_of_the_train_split(tmp_path):
    held = np.random.default_rng(SPLIT_SEED).permutation(300)[:60]
    inside = sorted(held)[37]
    contents = pictures(300)
    contents[inside] = BROKEN
    said = refused(settings(write(tmp_path / "d", train=contents)))
    assert f"train sample {inside}" in said and f"{inside:03}.png" in said


@pytest.mark.parametrize("first", [0, 1], ids=["every start looks at one", "nothing else looks at them"])
def test_all_of_them_are_named_at_once_the_first_ten_by_their_files(tmp_path, first):
    test = pictures(40, 100)
    test[first:13] = [BROKEN] * (13 - first)
    said = refused(settings(write(tmp_path / "d", train=pictures(40), test=test)))
    assert f"{13 - first} of " in said and f"and {3 - first} more" in said
    assert said.count("test sample") == 10


def lines(caplog, config: Config) -> list[str]:
    caplog.clear()
    with caplog.at_level("INFO", "trainer"):
        check(config, 1, {})
    return caplog.messages


def test_above_what_a_run_opens_it_says_so_unless_the_folder_was_prepared(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(opening, "AT_ONCE", 30)
    test = pictures(40, 100)
    test[29] = BROKEN
    config = settings(saved(tmp_path / "d", train=pictures(40), test=test))
    assert [line for line in lines(caplog, config) if "charts/prepare" in line]
    (tmp_path / "d" / "DONE.json").write_text("{}")
    assert not [line for line in lines(caplog, config) if "charts/prepare" in line]


@pytest.mark.parametrize("layout", [write, saved])
def test_test_pictures_that_are_learnt_too_are_one_line(tmp_path, caplog, layout):
    folder = layout(tmp_path / "d", train=pictures(40), test=[*pictures(3), *pictures(17, 100)])
    (found,) = [line for line in lines(caplog, settings(folder)) if "byte for byte" in line]
    assert " 3 of the 20 " in found
    folder = layout(tmp_path / "e", train=pictures(40), test=pictures(20, 100))
    assert not [line for line in lines(caplog, settings(folder)) if "byte for byte" in line]


def test_so_they_are_where_the_test_split_is_held_out(tmp_path, caplog):
    folder = write(tmp_path / "d", train=[png(7)] * 20 + [png(8)] * 20)
    (found,) = [line for line in lines(caplog, settings(folder)) if "byte for byte" in line]
    assert " 8 of the 8 " in found


def test_prepare_opens_everything_with_progress_and_counts_them_too(tmp_path):
    noted, said = [], []
    splits = {"train": pictures(40), "test": [*pictures(3), *pictures(17, 100)]}
    tables = dict(datasets.load_from_disk(str(saved(tmp_path / "d", **splits))))
    check_images("/data/d", tables, noted.append, said.append)
    assert noted[-1].startswith("60 of 60 ") and [line for line in said if " 3 of the 20 " in line]
    splits["train"][5] = splits["test"][6] = BROKEN
    tables = dict(datasets.load_from_disk(str(saved(tmp_path / "e", **splits))))
    with pytest.raises(DataMissing, match=r"2 of 60 .*train sample 5 .*test sample 6"):
        check_images("/data/e", tables)


def write_run(tmp_path: Path, config: Config) -> Path:
    run = tmp_path / "results" / "default" / "try"
    (run / "model").mkdir(parents=True)
    described = {"stratlab_model": "cnn", "class_names": ["a", "b"], "channels": 3}
    (run / "model" / "config.json").write_text(json.dumps(described))
    (run / "config.json").write_text(json.dumps({"config": config.model_dump(), "resolved": {}}))
    return run


def test_the_command_that_judges_weights_opens_the_test_split(tmp_path):
    splits = {"train": pictures(40), "test": pictures(40, 100), "validation": pictures(40, 200)}
    for place in (28, 29):
        splits["test"][place] = BROKEN
    run = write_run(tmp_path, settings(write(tmp_path / "d", **splits)))
    with pytest.raises(DataMissing, match="2 of .*test sample 28 .*test sample 29"):
        evaluate_run_directory(run)


def test_runs_of_a_sweep_that_hold_out_the_same_open_it_once(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "d", train=pictures(40), test=pictures(40, 100))
    runs = {
        name: {
            "TRAINER_RUN": name,
            "TRAINER_DATASET_PATH": str(folder),
            "TRAINER_RESULTS": str(tmp_path / "results"),
            "TRAINER_IMAGE_SIZE": "8",
            "TRAINER_GLOBAL_BATCH_SIZE": "8",
            "TRAINER_MICRO_BATCH_SIZE": "8",
            "TRAINER_PROFILE_STEPS": "0",
        }
        for name in ("one", "two")
    }
    opened = []
    plain = StoredPictures.open
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


def test_what_a_run_trains_on_is_the_same_as_before(tmp_path):
    data = open_data(settings(write(tmp_path / "d", train=pictures(40), test=pictures(8, 100))), 4)
    assert data.test.pixels(np.arange(8))[:, 0, 0, 0].tolist() == [*range(100, 108)]
