"""What a suite has come to: its result file, and how many commits ago that was."""

import json
import re
import subprocess
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from stratlab_spec.run_directory import write_json
from tests.suites.table import ROOT

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NO_CODE = (":!reports", ":!LAB.md", ":!*.md")
"""A commit that touches nothing else makes no result older."""
COUNTS = re.compile(r"(\d+) (passed|failed|error|errors|skipped)\b")


@dataclass(frozen=True)
class Result:
    """The head of reports/<suite>.json; `facts` is what the suite itself has written. `versions`: of what was tested,
    which is another environment where the facts tell some."""

    suite: str
    proves: str
    result: str
    reason: str
    commit: str
    changed_since_commit: bool
    date: str
    seconds: float
    hardware: str
    tests: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    facts: Any = None


def write_result(folder: Path, result: Result) -> None:
    """Writes <folder>/<suite>.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{result.suite}.json", asdict(result))


def read_result(folder: Path, suite: str) -> Result | None:
    """What is on disk for a suite; None where there is nothing that can be read."""
    try:
        found = json.loads((folder / f"{suite}.json").read_text())
        known = {each.name for each in fields(Result)}  # an older file may hold more
        return Result(**{name: value for name, value in found.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def judge(code: int, output: str) -> tuple[str, str, dict[str, int]]:
    """(passed, failed or skipped; the reason; tests by outcome) of a command's exit code and output.

    A pytest run in which no test passed has shown nothing, whatever its exit code.
    """
    lines = output.splitlines()
    closing = next((line for line in reversed(lines) if COUNTS.search(line) and " in " in line), "")
    tests = {outcome: int(count) for count, outcome in COUNTS.findall(closing)}
    if code:
        return FAILED, f"exit code {code}", tests
    skipped = [line for line in lines if line.startswith("SKIPPED: ")]
    if skipped:
        return SKIPPED, skipped[-1].removeprefix("SKIPPED: "), tests
    if closing and not tests.get("passed"):
        return FAILED, "no test ran", tests
    return PASSED, "", tests


def read_commit(root: Path = ROOT) -> str:
    """The commit of the checkout."""
    return _git(root, "rev-parse", "HEAD").strip()


def has_changes(root: Path = ROOT) -> bool:
    """Whether code differs from the commit."""
    return bool(_git(root, "status", "--porcelain", "--", ".", *NO_CODE).strip())


def count_commits_since(commit: str, root: Path = ROOT) -> int | None:
    """Commits with code since then; None where the history does not have that commit."""
    try:
        _git(root, "merge-base", "--is-ancestor", commit, "HEAD")
        return int(_git(root, "rev-list", "--count", f"{commit}..HEAD", "--", ".", *NO_CODE))
    except subprocess.CalledProcessError:
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
