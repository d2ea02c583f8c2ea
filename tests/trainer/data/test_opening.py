"""What a run holds out is opened before it trains, and test pictures that are learnt too are counted."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from stratlab_spec.exit_codes import DataMissing
from tests.codes import find_codes
from tests.trainer.data.pictures import BROKEN, opened, pngs, save, table, write
from trainer.data import image_checks as opening
from trainer.data.image_checks import check_held_out
from trainer.data.images import SPLIT_SEED
from trainer.data.pictures import StoredPictures
from trainer.launch.batch_validation import main as answer
from trainer.prepare.origin import check_images


def lay(folder: Path, **splits: list[bytes]) -> Path:
    """Two classes, in the order of the names."""
    for split, contents in splits.items():
        half = len(contents) / 2
        write(folder, {f"{split}/{'ab'[i >= half]}/{i:03}.png": each for i, each in enumerate(contents)})
    return folder


def refused(folder: Path, test_alone: bool = False) -> str:
    with pytest.raises(DataMissing) as failure:
        check_held_out(opened(folder), test_alone)
    assert find_codes(failure.value) == ["SL-picture-undecodable"]
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


@pytest.mark.parametrize("first", [0, 1], ids=["every start looks at one", "nothing else looks at them"])
def test_all_of_them_are_named_at_once_the_first_ten_by_their_files(tmp_path, first):
    test = pngs(40, 100)
    test[first:13] = [BROKEN] * (13 - first)
    said = refused(lay(tmp_path / "d", train=pngs(40), test=test))
    assert f"{13 - first} of " in said and f"and {3 - first} more" in said
    assert said.count("test sample") == 10


def test_above_what_a_run_opens_it_says_so_unless_the_folder_was_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "AT_ONCE", 30)
    test = pngs(40, 100)
    test[29] = BROKEN
    data = opened(lay(tmp_path / "d", train=pngs(40), test=test))
    assert len(check_held_out(data)) == 1 and check_held_out(data, prepared=True) == []


def test_test_pictures_that_are_learnt_too_are_counted(tmp_path):
    labels, test = [0, 1] * 20, [*pngs(3), *pngs(17, 100)]
    save(tmp_path / "d", train=table(pngs(40), labels), test=table(test, labels[:20]))
    (found,) = check_held_out(opened(tmp_path / "d"))
    assert " 3 of the 20 " in found
    (found,) = check_held_out(opened(lay(tmp_path / "f", train=pngs(1, 7) * 20 + pngs(1, 8) * 20)))
    assert " 8 of the 8 " in found  # held out of the train split


def test_prepare_opens_everything_with_progress_and_counts_them_too():
    noted, said = [], []
    labels, train, test = [0, 1] * 20, pngs(40), [*pngs(3), *pngs(17, 100)]
    tables = {"train": table(train, labels), "test": table(test, labels[:20])}
    check_images("/data/d", tables, noted.append, said.append)
    assert noted[-1].startswith("60 of 60 ") and [line for line in said if " 3 of the 20 " in line]
    train[5] = test[6] = BROKEN
    with pytest.raises(DataMissing) as failure:
        check_images("/data/e", {"train": table(train, labels), "test": table(test, labels[:20])})
    for part in ("2 of 60 ", "train sample 5 ", "test sample 6 "):
        assert part in str(failure.value)


def test_runs_of_a_sweep_that_hold_out_the_same_open_it_once(tmp_path, monkeypatch, capsys):
    folder = lay(tmp_path / "d", train=pngs(40), test=pngs(40, 100))
    given = {"dataset_path": folder, "results": tmp_path, "image_size": 8, "profile_steps": 0}
    given |= {"global_batch_size": 8, "micro_batch_size": 8}
    settings = {f"TRAINER_{name.upper()}": str(value) for name, value in given.items()}
    looked, plain = [], StoredPictures.open
    monkeypatch.setattr(StoredPictures, "open", lambda self, i: looked.append(self.split) or plain(self, i))
    counts = []
    for names in (["one"], ["one", "two"]):
        looked.clear()
        runs = {name: settings | {"TRAINER_RUN": name} for name in names}
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(runs)))
        assert answer([]) == 0
        found = json.loads(capsys.readouterr().out)
        assert all(result["code"] == 0 for result in found.values()), found
        counts.append(looked.count("test"))
    assert counts[1] - counts[0] < 40 < counts[0]
