"""Injects the faults of tests/faults/matrix.py and says what became of the runs.

    python -m tests.faults               # all of them
    python -m tests.faults F4 F8         # these
    python -m tests.faults F4 --keep     # this one, and its row takes the place of the one in reports/

Leaves reports/raw/faults.json, which `make nightly` keeps in reports/faults.json, and the same as a table: after all of
them in reports/faults.md, after some of them on the terminal alone, or with --keep in both. Each row says at which
commit it was run. Exit codes: 0 each fault ended as it must;
1 one did not; 2 no such fault.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults.matrix import FAULTS
from tests.faults.outcome import RECORD, judge_fault, read_outcomes, write_table
from tests.suites.result import FAILED, PASSED, has_changes, read_commit, read_result, write_result
from tests.suites.table import RAW, REPORTS, ROOT
from trainer.record.run_directory import write_json

FOUND = RAW / "faults.json"
TABLE = REPORTS / "faults.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tests of the chosen faults in one call of pytest; returns the exit code."""
    asked = _parser().parse_args(arguments)
    known = {fault.number: fault for fault in FAULTS}
    if unknown := [number for number in asked.numbers if number not in known]:
        print(f"{' '.join(unknown)}: no such fault, there are {' '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[number] for number in asked.numbers] or list(FAULTS)
    commit, changed = read_commit()[:8], has_changes()  # now: who works meanwhile moves it
    if asked.keep and changed:
        print("--keep: the code differs from the commit that its rows would name", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "outcomes.jsonl"
        paths = sorted({f"tests/{test}" for fault in chosen for test in fault.tests})
        subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.faults.outcome", f"--{RECORD}", str(record), *paths],
            cwd=ROOT, check=False,
        )  # fmt: skip
        outcomes = read_outcomes(record)
    run_at = {"commit": f"{commit}+changes" if changed else commit}
    rows = [judge_fault(fault, outcomes) | run_at for fault in chosen]
    _write(rows)
    table = write_table(rows)
    print(table)
    if chosen == list(FAULTS):
        TABLE.write_text(table)
    elif asked.keep:
        keep_rows(rows)
    return 0 if all(row["passed"] for row in rows) else 1


def keep_rows(rows: Sequence[Mapping[str, Any]], reports: Path = REPORTS) -> None:
    """Puts these rows into the result of the last run of all faults, and into its table.

    That result is passed when each of its rows is, whichever commit it was run at, and says which were run again; it
    counts no tests, for they are of no one run.
    """
    whole = read_result(reports, "faults")
    assert whole, f"{reports} holds no result of all faults"
    by_fault = {row["fault"]: row for row in (*whole.facts["faults"], *rows)}
    kept = sorted(by_fault.values(), key=lambda row: int(row["fault"][1:]))
    again = {*whole.facts.get("again", ()), *(row["fault"] for row in rows)}
    names = ", ".join(row["fault"] for row in kept if row["fault"] in again)
    wrong = ", ".join(row["fault"] for row in kept if not row["passed"])
    result = replace(
        whole, result=FAILED if wrong else PASSED, tests={}, facts={"faults": kept, "again": sorted(again)},
        reason=f"{f'{wrong} failed; ' if wrong else ''}run again at their own commits: {names}",
    )  # fmt: skip
    write_result(reports, result)
    (reports / TABLE.name).write_text(write_table(kept))


def _write(rows: list[dict[str, Any]]) -> None:
    FOUND.parent.mkdir(parents=True, exist_ok=True)
    write_json(FOUND, {"faults": rows})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("numbers", nargs="*", metavar="FAULT", help="F1, F2, ...; all by default")
    parser.add_argument("--keep", action="store_true", help="put the rows into reports/faults.json and .md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
