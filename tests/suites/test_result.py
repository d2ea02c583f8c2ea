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


def test_a_result_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_result(tmp_path / "reports", RESULT)
    assert read_result(path.parent, "parity") == RESULT
    assert [file.name for file in path.parent.iterdir()] == ["parity.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"suite": "parity"}'])
def test_what_cannot_be_read_is_no_result(tmp_path: Path, text: str) -> None:
    assert read_result(tmp_path, "parity") is None
    (tmp_path / "parity.json").write_text(text)
    assert read_result(tmp_path, "parity") is None


@pytest.mark.parametrize(
    ("code", "output", "result", "reason", "tests"),
    [
        (0, "3 passed, 1 skipped in 2.0s\n", "passed", "", {"passed": 3, "skipped": 1}),
        (1, "1 failed, 2 passed in 2.0s\n", "failed", "exit code 1", {"failed": 1, "passed": 2}),
        (0, "2 skipped in 0.1s\n", "failed", "no test ran", {"skipped": 2}),
        (5, "no tests ran in 0.1s\n", "failed", "exit code 5", {}),
        (0, "counting\nall within 1 %\n", "passed", "", {}),
        (0, "SKIPPED: nothing builds images\n", "skipped", "nothing builds images", {}),
        (1, "SKIPPED: one\n1 failed in 1.0s\n", "failed", "exit code 1", {"failed": 1}),
    ],
)
def test_a_command_is_judged_by_its_code_and_its_closing_line(
    code: int, output: str, result: str, reason: str, tests: dict[str, int]
) -> None:
    assert judge(code, output) == (result, reason, tests)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    commit(tmp_path, "code.py", "1")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.test", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


def commit(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", name)


def test_only_commits_with_code_make_a_result_older(repository: Path) -> None:
    tested = read_commit(repository)
    commit(repository, "reports/parity.json", "{}")
    commit(repository, "LAB.md", "measured")
    assert count_commits_since(tested, repository) == 0
    commit(repository, "code.py", "2")
    assert count_commits_since(tested, repository) == 1
    assert count_commits_since("0" * 40, repository) is None


def test_changes_of_reports_are_no_changes(repository: Path) -> None:
    (repository / "reports").mkdir()
    (repository / "reports" / "parity.json").write_text("{}")
    assert not has_changes(repository)
    (repository / "code.py").write_text("3")
    assert has_changes(repository)
