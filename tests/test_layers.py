"""The layers of docs/architecture.md, as import-linter sees them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: str = ".") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": folder}  # else an editable installation may be looked at instead
    return subprocess.run([LINT, "--no-cache"], capture_output=True, text=True, cwd=folder, env=env)


def copy_code(folder: Path) -> None:
    for name in ("trainer", "stratlab"):
        shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", folder)


def test_the_layers_hold() -> None:
    done = lint()
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout and "15 kept" in done.stdout


@pytest.mark.parametrize(
    ("contract", "module", "line"),
    [
        (
            "the rooms of the trainer",
            "trainer/shapes/decoder_shapes.py",
            "from trainer.models import decoder",
        ),
        ("no circles in the trainer", "trainer/settings/fields.py", "import trainer.settings.config"),
        ("the loop cannot name", "trainer/loop.py", "from trainer.strategies import ddp"),
        ("beside the ranks needs no torch", "trainer/launch/ledger.py", "import torch"),
        ("counting goes from its own", "trainer/counting/result.py", "from trainer.counting import steps"),
        ("imports nothing of counting", "trainer/__main__.py", "import trainer.counting.rules"),
        ("the two deployables", "trainer/record/spool.py", "from stratlab import user_error"),
        ("the rooms of stratlab", "stratlab/traces/trace.py", "from stratlab.analysis.dividing import lanes"),
        ("the rooms of stratlab", "stratlab/fetch/folder_pod.py", "from stratlab.logs import log_place"),
        ("no circles in stratlab", "stratlab/watch/picture.py", "from stratlab.watch import session"),
        (
            "no circles in stratlab",
            "stratlab/compare/judging/noise.py",
            "from stratlab.compare.judging import winners",
        ),
        (
            "runs are read, judged",
            "stratlab/compare/reading/layouts.py",
            "from stratlab.compare.judging import rules",
        ),
        (
            "runs are read, judged",
            "stratlab/compare/judging/scaling.py",
            "from stratlab.compare.explaining import causes",
        ),
        ("judging does not draw", "stratlab/compare/judging/goals.py", "from stratlab.drawing import badge"),
        (
            "traces are divided",
            "stratlab/analysis/measuring/rank.py",
            "from stratlab.analysis.reporting import totals",
        ),
        (
            "a step is divided",
            "stratlab/analysis/dividing/lanes.py",
            "from stratlab.analysis.dividing import exposure",
        ),
        (
            "advice follows",
            "stratlab/analysis/advice/rulebook/rule.py",
            "from stratlab.analysis.advice import evidence",
        ),
        ("the lab image", "stratlab/drawing/table.py", "import torch"),
    ],
)
def test_a_broken_layer_is_caught(tmp_path: Path, contract: str, module: str, line: str) -> None:
    copy_code(tmp_path)
    with open(tmp_path / module, "a") as file:
        file.write(f"\n{line}  # noqa\n")
    done = lint(str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert [text for text in done.stdout.splitlines() if contract in text and " BROKEN" in text], done.stdout
    assert f".{Path(module).stem} " in done.stdout  # of a circle only the last part is told


def test_the_pod_s_checks_run_without_torch():
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("room", ["trainer", "stratlab", "stratlab/compare", "stratlab/analysis"])
def test_a_new_room_needs_a_place(tmp_path: Path, room: str) -> None:
    """No room is outside the contracts."""
    copy_code(tmp_path)
    (tmp_path / room / "attic.py").touch()
    done = lint(str(tmp_path))
    assert done.returncode == 1
    assert f"{room.replace('/', '.')}.attic" in done.stdout, done.stdout


@pytest.mark.parametrize("package", ["trainer", "stratlab"])
def test_a_name_is_the_name_of_one_module(package: str) -> None:
    """So that whoever reads `rules` knows which; `command` is the way into the room of every verb."""
    names = Counter(path.stem for path in Path(package).rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} - {"__main__"} == {"__init__", "command"}


def test_on_top_of_the_trainer_is_what_a_reader_needs_first() -> None:
    assert len([path for path in Path("trainer").glob("*.py") if path.stem != "__init__"]) <= 12


def test_no_argument_list_is_cut_into_pieces() -> None:
    """`f(*(a, b), c)`: where a list of arguments is too long, the design is mended, not the line."""
    cut = [
        f"{path}:{node.lineno}"
        for package in ("trainer", "stratlab", "benchmarks", "tests")
        for path in Path(package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for given in node.args
        if isinstance(given, ast.Starred) and isinstance(given.value, ast.Tuple | ast.List)
    ]
    assert cut == []
