"""F28: the clock of the node is put an hour forth and back while the run trains."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from tests.faults.pods import open_pods

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
