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
OF_A_RUN = {"run", "results"}


def read(folder: Path, name: str) -> dict[str, object]:
    return json.loads((folder / name).read_text())  # type: ignore[no-any-return]


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
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert said[0].startswith("finished ") and said[-1] == "12"
    assert [line.split()[:2] for line in said[1:-1]] == [["ddp", "ddp"], ["fsdp", "fsdp"]]
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
    config, typed = read(ours, "config.json"), read(theirs, "config.json")
    for each in (config, typed):
        assert isinstance(each["config"], dict)
        each["config"] = {name: value for name, value in each["config"].items() if name not in OF_A_RUN}
    assert (config["config"], config["resolved"]) == (typed["config"], typed["resolved"])
    assert config.keys() == typed.keys()
    lines = [[json.loads(line) for line in (each / "metrics.jsonl").open()] for each in (ours, theirs)]
    losses = [
        [(line["step"], line["loss"], line["grad_norm"]) for line in run if line["kind"] == "train"]
        for run in lines
    ]
    assert len(losses[0]) == 12 and losses[0] == losses[1]
    assert read(ours, "summary.json").keys() == read(theirs, "summary.json").keys()
    files = [{str(path.relative_to(each)) for path in each.rglob("*")} for each in (ours, theirs)]
    names = [{re.sub(r"^pods/.*", "pods", name) for name in each} for each in files]
    assert names[0] == names[1]


def test_what_is_wrong_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"TRAINER_LRR: unknown setting[^$]*TRAINER_STEPS"):
        run_experiment(lrr=1, steps=-1)
    with pytest.raises(ExperimentFailed, match="bad configuration") as failed:
        run_experiment(run="odd", echo=False, **{**QUICK, "global_batch_size": 17})
    assert failed.value.exit_code == 2 and failed.value.folder == Path("results/default/odd")
    assert list(tmp_path.iterdir()) == []
