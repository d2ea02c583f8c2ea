"""The layers of docs/architecture.md, as import-linter sees them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: str = ".") -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINT, "--no-cache"], capture_output=True, text=True, cwd=folder)


def test_the_layers_hold():
    done = lint()
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout and "7 kept" in done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("trainer/loop.py", "from trainer.strategies import ddp  # noqa"),  # a loop that names a strategy
        ("trainer/__main__.py", "import trainer.counting.rules  # noqa"),  # a run that counts itself
        ("stratlab/traces/trace.py", "from stratlab.analysis import lanes  # noqa"),  # a reader that measures
    ],
)
def test_a_broken_layer_is_caught(tmp_path, module, line):
    for name in ("trainer", "stratlab"):
        shutil.copytree(name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", tmp_path)
    with open(tmp_path / module, "a") as file:
        file.write(f"\n{line}\n")
    done = lint(str(tmp_path))
    assert done.returncode == 1 and module.replace("/", ".").removesuffix(".py") in done.stdout, done.stdout


def test_the_pod_s_checks_run_without_torch():
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
