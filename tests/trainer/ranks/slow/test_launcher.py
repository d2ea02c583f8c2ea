"""What the launcher says of a rank that has failed.

A call of the Python API leaves what the command leaves.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.programs import find_python
from tests.run_directories import list_differences
from tests.trainer.kept_runs import read
from tests.trainer.ranks.test_launcher import ONE, launch, read_lines
from trainer.api import ExperimentFailed, experiment, run_experiment


def test_the_last_sentence_is_that_of_the_rank_that_failed(tmp_path):
    """One image in the middle of 400 is cut; nothing looks at it before it is its turn."""
    for index in range(400):
        path = tmp_path / "pets" / "train" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    cut = tmp_path / "pets" / "train" / "cat" / "102.png"
    cut.write_bytes(cut.read_bytes()[:300])
    given = {
        "TRAINER_DATASET_PATH": str(tmp_path / "pets"),
        "TRAINER_STEPS": "40",
        "TRAINER_PROFILE_STEPS": "0",
    }
    done = launch(tmp_path / "results", **ONE, **given)
    assert done.returncode == 3, done.stdout[-2000:] + done.stderr[-2000:]
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rank 0: ") and f"({cut})" in last
    lines = read_lines(tmp_path / "results" / "default" / "try" / "metrics.jsonl")
    assert any(line["kind"] == "train" for line in lines), "it was not found while training"


QUICK = {
    "model": "cnn", "image_size": 8, "steps": 12, "global_batch_size": 16, "micro_batch_size": 8, "lr": 3e-3,
    "profile_steps": 0,
}  # fmt: skip


def test_it_leaves_what_the_command_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(experiment.sys, "executable", find_python())
    monkeypatch.chdir(tmp_path)
    ours = run_experiment(strategy="single", processes=1, results="python", **QUICK)
    assert re.fullmatch(r"python/default/single-\d{8}-\d{6}", str(ours))
    pairs = ["strategy=single", "results=cli", "run=typed", *(f"{name}={QUICK[name]}" for name in QUICK)]
    command = [find_python(), "-m", "trainer", "--processes", "1"]
    command += [word for pair in pairs for word in ("--set", pair)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    theirs = Path("cli/default/typed")
    assert list_differences(ours, theirs) == []
    content = read(theirs, "summary.json")
    (theirs / "summary.json").write_text(json.dumps(content | {"gradient_memory_gib": 1.0}))
    assert len(list_differences(ours, theirs)) == 1, "what compares sees one field"
    with pytest.raises(ExperimentFailed) as failed:
        run_experiment(run="odd", echo=False, **{**QUICK, "global_batch_size": 17})
    assert failed.value.exit_code == 2 and failed.value.folder == Path("results/runs/default/odd")
    assert {path.name for path in tmp_path.iterdir()} == {"python", "cli"}
