"""The layers of docs/architecture.md, as import-linter sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: str = ".") -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINT, "--no-cache"], capture_output=True, text=True, cwd=folder)


def test_the_layers_hold():
    done = lint()
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout and "4 kept" in done.stdout


def test_a_loop_that_names_a_strategy_is_caught(tmp_path):
    import shutil

    for name in ("trainer", "stratlab"):
        shutil.copytree(name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", tmp_path)
    with open(tmp_path / "trainer" / "loop.py", "a") as file:
        file.write("\nfrom trainer.strategies import ddp  # noqa\n")
    done = lint(str(tmp_path))
    assert done.returncode == 1 and "trainer.loop" in done.stdout, done.stdout


def test_the_pod_s_checks_run_without_torch():
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
