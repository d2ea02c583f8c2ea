"""The layers of docs/architecture.md, as import-linter sees them."""

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

LINT = Path(sys.executable).with_name("lint-imports")
# contract, module, line that breaks it
PLANTED = [
    ("what both know", "stratlab_spec/schedule.py", "import torch"),
    ("the trainer imports no tool", "trainer/metrics/__init__.py", "import stratlab"),
    ("the tools have no torch", "stratlab/drawing/page.py", "import torch"),
    ("no circles", "stratlab/watch_state.py", "from stratlab import watch_session"),
    ("settled from its settings up", "stratlab_spec/schedule.py", "import stratlab_spec.layout"),
    ("the rooms of the trainer", "trainer/data/images.py", "from trainer.models import decoder"),
    ("the loop cannot name", "trainer/loop.py", "from trainer.strategies import ddp"),
    ("before the ranks needs no torch", "trainer/launch/ledger.py", "import torch"),
    ("nothing of the memory estimation", "trainer/__main__.py", "import trainer.memory_estimation.rules"),
    ("the rooms of stratlab", "stratlab/logs.py", "from stratlab import results_pods"),
    ("runs are read, judged", "stratlab/compare/run_sources.py", "import stratlab.compare.rules"),
    ("judging does not draw", "stratlab/compare/winners.py", "from stratlab.drawing import badge"),
    ("traces are divided", "stratlab/analysis/rank.py", "import stratlab.analysis.report"),
]


def lint(folder: str = ".") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": folder}  # else an editable installation may be looked at instead
    return subprocess.run([LINT, "--no-cache"], capture_output=True, text=True, cwd=folder, env=env)


def test_the_layers_hold() -> None:
    done = lint()
    assert done.returncode == 0 and "0 broken" in done.stdout, done.stdout
    assert f"{len(PLANTED)} kept" in done.stdout, "each contract has a line that breaks it"


def test_each_contract_sees_what_breaks_it_and_a_new_room_needs_a_place(tmp_path: Path) -> None:
    for name in ("stratlab_spec", "trainer", "stratlab"):
        shutil.copytree(name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", tmp_path)
    for _, module, line in PLANTED:
        with open(tmp_path / module, "a") as file:
            file.write(f"\n{line}  # noqa\n")
    (tmp_path / "stratlab" / "attic.py").touch()
    said = lint(str(tmp_path)).stdout
    broken = [text for text in said.splitlines() if " BROKEN" in text]
    assert [contract for contract, *_ in PLANTED if not any(contract in text for text in broken)] == []
    assert f"{len(PLANTED)} broken" in said and "stratlab.attic" in said


def test_the_pod_s_checks_run_without_torch() -> None:
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("package", ["stratlab_spec", "trainer", "stratlab"])
def test_a_name_is_the_name_of_one_module(package: str) -> None:
    """So that `rules` in a sentence names one file; `command` is a room's way in."""
    names = Counter(path.stem for path in Path(package).rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} <= {"__main__", "__init__", "command"}
    top = [path for path in Path("trainer").glob("*.py") if path.stem != "__init__"]
    assert len(top) <= 13, "on top of the trainer is what a reader needs first"


def test_a_class_name_is_the_name_of_one_class() -> None:
    names = Counter(
        node.name
        for package in ("stratlab_spec", "trainer", "stratlab")
        for path in Path(package).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_argument_list_is_cut_into_pieces() -> None:
    """`f(*(a, b), c)`: where a list of arguments is too long, the design is mended, not the line."""
    cut = [
        f"{path}:{node.lineno}"
        for package in ("stratlab_spec", "trainer", "stratlab", "benchmarks", "tests")
        for path in Path(package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for given in node.args
        if isinstance(given, ast.Starred) and isinstance(given.value, ast.Tuple | ast.List)
    ]
    assert cut == []
