"""F25: a picture of the data set is taken away while the run trains, and put back."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from PIL import Image

from tests.faults.pods import open_pods, train_undisturbed

SAMPLES = 400


def write_pictures(folder: Path) -> list[Path]:
    paths = []
    for index in range(SAMPLES):
        path = folder / "train" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(index).integers(0, 255, (16, 16, 3), np.uint8)).save(path)
        paths.append(path)
    return paths


def test_a_picture_that_is_gone_is_named_and_put_back_no_sample_is_missed_or_seen_twice(
    tmp_path: Path, record_property
) -> None:
    pictures = write_pictures(tmp_path / "pets")
    settings = {
        "TRAINER_DATASET_PATH": str(tmp_path / "pets"), "TRAINER_STEPS": "200", "TRAINER_CHECKPOINT_EVERY": "4",
        "TRAINER_DATA_RESIDENCE": "stream",
    }  # fmt: skip
    whole = train_undisturbed(tmp_path / "whole", 1, 1, settings)
    hidden = [(path, path.with_suffix(".hidden")) for path in pictures[100:160]]
    (tmp_path / "lost").mkdir()
    with open_pods(tmp_path / "lost", 1, 1, settings) as pods:
        pods.start()
        pods.wait_for_step(6)
        for path, aside in hidden:
            path.rename(aside)
        assert pods.finish() == 3, pods.said()
        assert "pets/train/" in pods.said() and "Traceback" not in pods.said()
        for path, aside in hidden:
            aside.rename(path)
        began = time.time()
        pods.start()
        assert pods.finish() == 0, pods.said()
        record_property("seconds_to_recover", round(pods.recovery_s(began), 1))
        record_property("steps_lost", pods.steps_again())
        assert pods.losses() == whole, "each step has the samples that it would have had"
