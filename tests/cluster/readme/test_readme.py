"""What the README tells a user to type on a cluster, typed: each command must succeed, and leave what it promises.

tests/cluster/run ../shared/cluster tests/cluster/readme --exitfirst
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import PREFIX, ROOT, STRATLAB
from tests.cluster.readme.path import LAST, Step, read_path
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

PATIENCE_S = 900
SWEEP_S = 2700
STEPS = read_path()
LEFT = ("*-report", "*-report-tuning", "examples/*.state.json")
"""What its commands leave in the repository."""


@pytest.fixture(scope="module")
def shell(steps: Steps, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of one shell, in the repository; its namespace and files are taken away again at the end."""
    assert not PREFIX, "the README's commands name the images without a registry: unset STRATLAB_IMAGE_PREFIX"
    there = subprocess.run(
        [ROOT / ".tools" / "kubectl", "get", "namespaces", "-o", "name"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "namespace/stratlab\n" not in there.stdout, "the namespace stratlab is there already"
    path = f"{os.environ['PATH']}:{ROOT / '.tools'}:{STRATLAB.parent}"  # as the README exports it
    before = _list_left()
    yield {**os.environ, "PATH": path}
    subprocess.run(
        [ROOT / ".tools" / "kubectl", "delete", "namespace", "stratlab", "--ignore-not-found"], check=False
    )
    for path in _list_left() - before:
        subprocess.run(["rm", "-rf", path], check=False)


def _list_left() -> set[Path]:
    return {path for pattern in LEFT for path in ROOT.glob(pattern)}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.told[:60])
def test_a_command(shell: dict[str, str], steps: Steps, step: Step) -> None:
    with steps.step(step.told) as notes:
        if step.why:
            notes.append(f"instead: {step.line or 'nothing'} ({step.why})")
        if step.line:
            began = time.monotonic()
            judge(step, _run(step, shell))
            notes.append(f"{time.monotonic() - began:.0f} s")
    if not step.line:
        pytest.skip(f"not run here: {step.why}")


def _run(step: Step, shell: dict[str, str]) -> str:
    """What the command prints; it succeeds."""
    done = subprocess.run(
        ["bash", "-c", step.line],
        cwd=ROOT,
        env=shell,
        capture_output=True,
        text=True,
        timeout=SWEEP_S if step.told == LAST else PATIENCE_S,
    )
    assert done.returncode == 0, f"{step.line}\n{done.stdout[-4000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def judge(step: Step, printed: str) -> None:
    """What the README promises of a command, besides that it succeeds."""
    words = step.told.split()
    if words[:2] == ["stratlab", "check"]:
        assert printed.strip().endswith("ready"), printed
    elif words[:2] == ["stratlab", "watch"]:
        assert f"{words[2]}: succeeded" in printed and "analysis/report.html" in printed
    elif words[:2] == ["stratlab", "compare"]:
        assert read_runs(ROOT / "demo-report") == ["ddp", "fsdp"]
    elif step.told == LAST:
        assert len(read_runs(ROOT / "digits-sweep-report")) == 10
        assert "problem:" not in printed


def read_runs(folder: Path) -> list[str]:
    """The finished runs of a report."""
    report = json.loads((folder / "report.json").read_text())
    return [run["run"] for run in report["runs"] if run["status"] == "finished"]
