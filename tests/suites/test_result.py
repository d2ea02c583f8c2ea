from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.suites.result import (
    Result,
    count_commits_since,
    has_changes,
    judge,
    read_commit,
    read_result,
    write_result,
)

RESULT = Result(
    suite="parity", proves="all are one", result="passed", reason="", commit="c0ffee", changed_since_commit=False,
    date="2026-11-22T10:00:00+00:00", seconds=3.5, hardware="a processor, 2 cores",
    tests={"passed": 3}, facts={"rows": [1]},
)  # fmt: skip


def test_a_result_comes_back_and_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_result(tmp_path / "reports", "parity") is None
    write_result(tmp_path / "reports", RESULT)
    assert read_result(tmp_path / "reports", "parity") == RESULT
    (file,) = (tmp_path / "reports").iterdir()
    for text in ("{", "[]", '{"suite": "parity"}'):
        file.write_text(text)
        assert read_result(tmp_path / "reports", "parity") is None


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


def test_only_code_makes_a_result_older_or_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    commit(tmp_path, "code.py", "1")
    tested = read_commit(tmp_path)
    commit(tmp_path, "reports/parity.json", "{}")
    assert count_commits_since(tested, tmp_path) == 0 and count_commits_since("0" * 40, tmp_path) is None
    (tmp_path / "reports" / "parity.json").write_text("[]")
    assert not has_changes(tmp_path)
    (tmp_path / "code.py").write_text("2")
    assert has_changes(tmp_path)
    commit(tmp_path, "code.py", "2")
    assert count_commits_since(tested, tmp_path) == 1
