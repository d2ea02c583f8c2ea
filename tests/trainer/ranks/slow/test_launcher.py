"""What the launcher says of a rank that has failed."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import find_python
from tests.run_directories import list_differences
from tests.trainer.kept_runs import read
from trainer.api import ExperimentFailed, experiment, run_experiment

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
