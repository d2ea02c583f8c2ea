from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.suites.result import (
    judge,
)


@pytest.mark.parametrize(
    ("code", "output", "result", "tests"),
    [
        (0, "3 passed, 1 skipped in 2.0s\n", "passed", {"passed": 3, "skipped": 1}),
        (1, "SKIPPED: one\n1 failed, 2 passed in 2.0s\n", "failed", {"failed": 1, "passed": 2}),
        (0, "2 skipped in 0.1s\n", "failed", {"skipped": 2}),  # no test ran
        (0, "counting\nall within 1 %\n", "passed", {}),
        (0, "SKIPPED: nothing builds images\n", "skipped", {}),
    ],
)
def test_a_command_is_judged_by_its_code_and_its_closing_line(
    code: int, output: str, result: str, tests: dict[str, int]
) -> None:
    found, reason, counted = judge(code, output)
    assert (found, counted) == (result, tests) and bool(reason) == (result != "passed")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.test", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


def commit(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", name)
