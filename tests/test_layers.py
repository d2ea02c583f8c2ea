"""The layers of docs/architecture.md, as import-linter sees them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: str = ".") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": folder}  # else an editable installation may be looked at instead
    return subprocess.run([LINT, "--no-cache"], capture_output=True, text=True, cwd=folder, env=env)


def test_the_layers_hold() -> None:
    done = lint()
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout and "8 kept" in done.stdout


@pytest.mark.parametrize(
    ("contract", "module", "line"),
    [
        (
            "the rooms of the trainer",
            "trainer/shapes/decoder_shapes.py",
            "from trainer.models import decoder",
        ),
        ("the loop cannot name", "trainer/loop.py", "from trainer.strategies import ddp"),
        ("beside the ranks needs no torch", "trainer/launch/ledger.py", "import torch"),
        ("counting goes from its own", "trainer/counting/result.py", "from trainer.counting import steps"),
        ("imports nothing of counting", "trainer/__main__.py", "import trainer.counting.rules"),
        ("the two deployables", "trainer/record/spool.py", "from stratlab import user_error"),
        ("traces are read", "stratlab/traces/trace.py", "from stratlab.analysis import lanes"),
        ("the lab image", "stratlab/drawing/table.py", "import torch"),
    ],
)
def test_a_broken_layer_is_caught(tmp_path: Path, contract: str, module: str, line: str) -> None:
    for name in ("trainer", "stratlab"):
        shutil.copytree(name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", tmp_path)
    with open(tmp_path / module, "a") as file:
        file.write(f"\n{line}  # noqa\n")
    done = lint(str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert [text for text in done.stdout.splitlines() if contract in text and " BROKEN" in text], done.stdout
    assert module.replace("/", ".").removesuffix(".py") in done.stdout


def test_the_pod_s_checks_run_without_torch():
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
