"""Injects the faults of tests/faults/matrix.py and says what became of the runs.

    python -m tests.faults               # all of them
    python -m tests.faults F4 F8         # these

Leaves reports/raw/faults.json, which `make nightly` keeps in reports/faults.json, and the same as a table: after all of
them in reports/faults.md, after some of them on the terminal alone. Each row says at which commit it was run. Exit
codes: 0 each fault ended as it must; 1 one did not; 2 no such fault.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stratlab_spec.run_directory import write_json
from tests.faults.matrix import FAULTS
from tests.faults.outcome import judge_fault, read_outcomes, write_table
from tests.suites.result import has_changes, read_commit
from tests.suites.table import RAW, REPORTS, ROOT

FOUND = RAW / "faults.json"
TABLE = REPORTS / "faults.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tests of the chosen faults in one call of pytest; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("numbers", nargs="*", metavar="FAULT", help="F1, F2, ...; all by default")
    asked = parser.parse_args(arguments)
    known = {fault.number: fault for fault in FAULTS}
    if unknown := [number for number in asked.numbers if number not in known]:
        print(f"{' '.join(unknown)}: no such fault, there are {' '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[number] for number in asked.numbers] or list(FAULTS)
    commit, changed = read_commit()[:8], has_changes()  # now: who works meanwhile moves it
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        paths = sorted({f"tests/{test}" for fault in chosen for test in fault.tests})
        subprocess.run([sys.executable, "-m", "pytest", f"--junitxml={junit}", *paths], cwd=ROOT, check=False)
        outcomes = read_outcomes(junit)
    run_at = {"commit": f"{commit}+changes" if changed else commit}
    rows = [judge_fault(fault, outcomes) | run_at for fault in chosen]
    FOUND.parent.mkdir(parents=True, exist_ok=True)
    write_json(FOUND, {"faults": rows})
    table = write_table(rows)
    print(table)
    if chosen == list(FAULTS):
        TABLE.write_text(table)
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
