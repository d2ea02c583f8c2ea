"""docs/python-api.md as a plain file; and what a call leaves against what the command leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.commands import ROOT
from tests.run_directories import list_differences
from trainer.api import ExperimentFailed, run_experiment
from trainer.settings.config import ConfigError

(CODE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python-api.md").read_text(), re.DOTALL)
QUICK = {
    "model": "cnn",
    "image_size": 8,
    "steps": 12,
    "global_batch_size": 16,
    "micro_batch_size": 8,
    "lr": 3e-3,
}


def test_the_page_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "try.py").write_text(CODE)
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "try.py"],
        cwd=tmp_path,
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert said[0].startswith("finished ") and said[-1] == "12"
    assert [line.split()[:2] for line in said[1:-4]] == [["ddp", "ddp"], ["fsdp", "fsdp"]]
    assert re.fullmatch(r"traces [1-9]\d*", said[-4]) and said[-3] == "3"
    assert "strategy='dpp': expected one of " in said[-2]
    assert (tmp_path / "python-report/report.html").is_file()


def test_it_leaves_what_the_command_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    ours = run_experiment(strategy="ddp", processes=2, results="python", **QUICK)
    assert "done: test loss" in capsys.readouterr().err
    pairs = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    command = [
        sys.executable,
        "-m",
        "trainer",
        "--processes",
        "2",
        "--set",
        "strategy=ddp",
        "--set",
        "results=cli",
        *pairs,
    ]
    assert subprocess.run([*command, "--set", "run=typed"], capture_output=True).returncode == 0
    theirs = Path("cli/default/typed")
    assert re.fullmatch(r"python/default/ddp-\d{8}-\d{6}", str(ours))
    assert list_differences(ours, theirs) == []
    assert sum('"train"' in line for line in (ours / "metrics.jsonl").open()) == 12
    assert [line for line in list_differences(ours, plant_difference(theirs)) if "gradient_memory" in line]


def plant_difference(folder: Path) -> Path:
    """One field of summary.json is another one: what compares sees it."""
    path = folder / "summary.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"gradient_memory_gib": 1.0}))
    return folder


def test_what_is_wrong_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^lrr: unknown setting[^$]*\nsteps="):
        run_experiment(lrr=1, steps=-1)
    with pytest.raises(ExperimentFailed, match="bad configuration") as failed:
        run_experiment(run="odd", echo=False, **{**QUICK, "global_batch_size": 17})
    assert failed.value.exit_code == 2 and failed.value.folder == Path("results/runs/default/odd")
    assert list(tmp_path.iterdir()) == []
