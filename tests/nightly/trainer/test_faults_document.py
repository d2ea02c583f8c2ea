"""The commands of docs/faults.md that plant a fault, as they stand there; exit codes and sentences are behind the #."""

import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.documents.commands import FENCE, ROOT, read_commands, split

LINE = re.compile(r"^(python -m trainer --config .*?) +# (\d+)(?:: (.*))?$", re.MULTILINE)
ON_ITS_OWN = ("hanging", "poisoned", "large", "smaller", "full", "damaged", "refused", "late")
"""Runs that need no other one."""


def read_lines() -> list[tuple[str, int, str]]:
    """(command, exit code, sentence) of the page, in its order."""
    blocks = "\n".join(FENCE.findall((ROOT / "docs/faults.md").read_text()))
    return [(command, int(code), said or "") for command, code, said in LINE.findall(blocks)]


def name_of(line: tuple[str, int, str]) -> str:
    return next(word[4:] for word in split(line[0]) if word.startswith("run="))


def try_lines(lines: list[tuple[str, int, str]], folder: Path) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    for command, code, sentence in lines:
        done = subprocess.run(
            [sys.executable, *split(command)[1:]],
            cwd=folder, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{command}\n{said[-3000:]}"
        assert sentence in said, f"{command}\n{said[-3000:]}"


@pytest.mark.parametrize("name", ON_ITS_OWN)
def test_the_fault_ends_as_the_page_says(tmp_path: Path, name: str) -> None:
    lines = [line for line in read_lines() if name_of(line) == name]
    assert lines
    try_lines(lines, tmp_path)


def test_a_killed_run_goes_on_and_then_under_another_strategy(tmp_path: Path) -> None:
    try_lines([line for line in read_lines() if name_of(line) not in ON_ITS_OWN], tmp_path)


def test_every_command_of_the_page_is_tried() -> None:
    told = [c for c, files in read_commands().items() if "docs/faults.md" in files and c.startswith("python")]
    assert {command for command, _, _ in read_lines()} == set(told)
    names = [name for name, _ in groupby(read_lines(), name_of)]
    assert {*names} - {*ON_ITS_OWN} == {"killed", "moved"}
