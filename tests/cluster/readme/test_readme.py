"""What docs/cluster.md asks a user to type, typed: each command must succeed, and leave what it promises."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import KUBECTL, PREFIX, ROOT, STRATLAB, run
from tests.cluster.readme.path import LAST, Step, read_path

pytestmark = pytest.mark.cluster

PATIENCE_S = 900
SWEEP_S = 2700
LEFT = ("*-report", "*-report-tuning", "examples/*.state.json")
"""What its commands leave in the repository."""


@pytest.fixture(scope="module")
def shell() -> Iterator[dict[str, str]]:
    """The variables of one shell, in the repository; its namespace and files are taken away again at the end."""
    assert not PREFIX, "the commands name the images without a registry: unset STRATLAB_IMAGE_PREFIX"
    there = run([KUBECTL, "get", "namespaces", "-o", "name"]).stdout
    assert "namespace/stratlab\n" not in there, "the namespace stratlab is there already"
    path = f"{os.environ['PATH']}:{ROOT / '.tools'}:{STRATLAB.parent}"  # as the page exports it
    before = _list_left()
    yield {**os.environ, "PATH": path}
    run([KUBECTL, "delete", "namespace", "stratlab", "--ignore-not-found"], check=False)
    for made in _list_left() - before:
        shutil.rmtree(made) if made.is_dir() else made.unlink()


def _list_left() -> set[Path]:
    return {path for pattern in LEFT for path in ROOT.glob(pattern)}


def test_the_commands_in_their_order(shell: dict[str, str]) -> None:
    for step in read_path():
        print(f"{step.told}: {step.why}", flush=True)
        judge(step, type_in(shell, step))


def type_in(shell: dict[str, str], step: Step) -> str:
    limit_s = SWEEP_S if step.told == LAST else PATIENCE_S
    command = ["bash", "-c", step.line or "true"]
    done = subprocess.run(command, cwd=ROOT, env=shell, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, f"{step.line}\n{done.stdout[-4000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def judge(step: Step, printed: str) -> None:
    """What the page promises of a command, besides that it succeeds."""
    words = step.told.split()
    if words[:2] == ["stratlab", "check"]:
        assert printed.strip().endswith("ready"), printed
    elif words[:2] == ["stratlab", "watch"]:
        assert "analysis/report.html" in printed
    elif words[:2] == ["stratlab", "compare"]:
        assert read_runs(ROOT / "demo-report") == ["ddp", "fsdp"]
    elif step.told == LAST:
        assert len(read_runs(ROOT / "digits-sweep-report")) == 10


def read_runs(folder: Path) -> list[str]:
    report = json.loads((folder / "report.json").read_text())
    return [run["run"] for run in report["runs"] if run["status"] == "finished"]
