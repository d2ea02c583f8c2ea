"""F25, F27, F28: a picture that is gone, a second start, a clock that jumps."""

import itertools
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
from PIL import Image

from tests.faults.pods import open_pods, train_undisturbed

SITE = """
import sys
if "trainer" in sys.orig_argv or "trainer.worker" in sys.orig_argv:
    import pathlib, time
    real, shift = time.time, pathlib.Path({shift!r})
    def jumping():
        try:
            return real() + float(shift.read_text())
        except (OSError, ValueError):
            return real()
    time.time = jumping
"""


def test_durations_do_not_jump_and_the_run_ends_well(tmp_path: Path) -> None:
    """What Python calls the time is shifted in launcher and ranks: the clock of this machine is not ours to set."""
    shift = tmp_path / "shift"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE.replace("{shift!r}", repr(str(shift))))
    settings = {"TRAINER_STEPS": "200", "PYTHONPATH": str(tmp_path / "site"), "TRAINER_DEADLINE_S": "1800"}
    with open_pods(tmp_path, 1, 2, settings) as pods:
        pods.start()
        for step, seconds in ((20, "1200"), (60, "-3600"), (100, "0")):
            pods.wait_for_step(step)
            shift.with_suffix(".new").write_text(seconds)
            os.replace(shift.with_suffix(".new"), shift)
        assert pods.finish() == 0, pods.said()
    times = [line["t"] for line in pods.trained()]
    jumps = [b - a for a, b in itertools.pairwise(times)]
    assert max(jumps) > 1000 and min(jumps) < -1000, "the clock has jumped"
    steps_ms = [line["step_time_ms"] for line in pods.trained()]
    assert min(steps_ms) > 0 and max(steps_ms) < 60_000
    summary = json.loads((pods.folder.path / "summary.json").read_text())
    assert 0 < summary["train_time_s"] < 600 and summary["samples_per_s"] > 0


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
    tmp_path, record_property
):
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


def test_the_second_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    settings = {"TRAINER_STEPS": "1000000", "TRAINER_CHECKPOINT_EVERY": "0"}
    with open_pods(tmp_path, 1, 1, settings) as first, open_pods(tmp_path, 1, 1, settings) as second:
        first.start()
        first.wait_for_step(5)
        second.start()
        assert second.finish(limit_s=90) == 2, second.said()
        first.wait_for_step(max(first.losses()) + 5)
        first.send(0, signal.SIGTERM)
        assert first.starts() == [0]


KILLS, STATE_BYTES = int(os.environ.get("STRATLAB_KILLS", "200")), 200 << 20
