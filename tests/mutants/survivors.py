"""Plants the slips of survivors.toml one at a time in a copy of the tree: does the test that is named see each?

    python -m tests.mutants.survivors                    # every slip without a result for this tree
    python -m tests.mutants.survivors p95-index nd-clips-up   # these
    python -m tests.mutants.survivors --again            # also those that are known to be caught

Before a slip is planted its test has to pass. What has been found lies in reports/raw/survivors.json, so a run may be
stopped and started again; a result holds until the slip, its file or its test's file changes. Exit codes: 0 every slip
is caught, 1 one survives, 2 the table names a slip, a text or a test that is not there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutants.slip import Slip, build_key, find_problems, planted, read_slips

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("survivors.toml")
FOUND = ROOT / "reports" / "raw" / "survivors.json"
SHARED = (".venv", ".tools")
"""Installed by `make setup`: linked into the copy, not copied."""
LONGEST_S = 240  # of one test's run; each further one may take 30 s more
PASSED, FAILED = 0, 1  # exit codes of pytest

Outcome = Literal["caught", "survived", "broken"]
RunTests = Callable[[Path, Sequence[str]], int]


@dataclass(frozen=True)
class Result:
    """`key` changes with the slip, its file and the files of its tests."""

    outcome: Outcome
    key: str
    tests: tuple[str, ...]
    seconds: float


@contextlib.contextmanager
def copy_tree(root: Path) -> Iterator[Path]:
    """A copy of what git knows or would take in, for as long as the context lasts."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="survivors-") as folder:
        copy = Path(folder)
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).exists() and name not in SHARED:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, copy / name, follow_symlinks=False)
        for name in SHARED:
            if (root / name).exists():
                (copy / name).symlink_to(root / name)
        yield copy


def run_tests(tree: Path, tests: Sequence[str]) -> int:
    """pytest's exit code for these tests of `tree`; 1 as well where they hang."""
    # an earlier slip's bytecode would be taken for the next one's: same size, same second
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, timeout=LONGEST_S + 30 * len(tests),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        return FAILED


def try_slip(slip: Slip, tree: Path, run: RunTests) -> Outcome:
    """`broken`: the tests do not even run with the slip, so that nothing is known."""
    with planted(slip, tree):
        code = run(tree, slip.tests)
    return {PASSED: "survived", FAILED: "caught"}.get(code, "broken")  # type: ignore[return-value]


def read_found(path: Path) -> dict[str, Result]:
    """The results of earlier runs by slip."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())
    return {name: Result(**{**row, "tests": tuple(row["tests"])}) for name, row in rows.items()}


def write_found(found: dict[str, Result], path: Path) -> None:
    """All of them, in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(json.dumps({name: dataclasses.asdict(row) for name, row in found.items()}, indent=1))
    os.replace(aside, path)


def main(
    arguments: Sequence[str] | None = None,
    root: Path = ROOT,
    table: Path = TABLE,
    results: Path = FOUND,
    run: RunTests = run_tests,
) -> int:
    """Prints a line per slip; returns the exit code."""
    asked = _parser().parse_args(arguments)
    slips = read_slips(table)
    known = [slip.name for slip in slips]
    problems = find_problems(slips, root)
    problems += [f"{name}: no slip of the table" for name in asked.names if name not in known]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    chosen = [slip for slip in slips if not asked.names or slip.name in asked.names]
    found = {name: row for name, row in read_found(results).items() if name in known}
    todo = [slip for slip in chosen if asked.again or not _is_caught(slip, found.get(slip.name), root)]
    for slip in chosen:
        if slip not in todo:
            _say(found[slip.name], slip, "seen before")
    if todo:
        with copy_tree(root) as tree:
            if not _pass_unplanted(todo, tree, run):
                return 1
            for number, slip in enumerate(todo, 1):
                began, key = time.monotonic(), build_key(slip, root)
                outcome = try_slip(slip, tree, run)
                seconds = round(time.monotonic() - began, 1)
                found[slip.name] = Result(outcome, key, slip.tests, seconds)
                write_found(found, results)
                _say(found[slip.name], slip, f"{number}/{len(todo)}")
    write_found(found, results)
    lost = [slip.name for slip in chosen if found[slip.name].outcome != "caught"]
    said = f": not {', '.join(lost)}" if lost else ""
    print(f"{len(chosen) - len(lost)} of {len(chosen)} slips are caught{said}")
    return 1 if lost else 0


def _is_caught(slip: Slip, row: Result | None, root: Path) -> bool:
    return row is not None and row.outcome == "caught" and row.key == build_key(slip, root)


def _pass_unplanted(slips: Sequence[Slip], tree: Path, run: RunTests) -> bool:
    """Whether the tests pass without any slip: else their failing would show nothing."""
    tests = sorted({test for slip in slips for test in slip.tests})
    print(f"the {len(tests)} tests of {len(slips)} slips, without any", flush=True)
    if run(tree, tests) == PASSED:
        return True
    print(f"they do not pass: python -m pytest {' '.join(tests)}", file=sys.stderr)
    return False


def _say(row: Result, slip: Slip, note: str) -> None:
    print(
        f"{row.outcome:8}  {slip.name:28}  {row.seconds:5.1f} s  {note:11}  {', '.join(row.tests)}",
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.survivors", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="SLIP", help="names in the table; all by default")
    parser.add_argument("--again", action="store_true", help="also those that have been seen")
    return parser


if __name__ == "__main__":
    sys.exit(main())
