"""Runs with memory that nobody should hold, and runs as they are: does each say of itself what is so?

    python -m tests.memory_faults                       # every case without a result for this tree
    python -m tests.memory_faults "ddp weights"         # those whose names hold one of these texts

The real worker trains on ranks of this machine; the storages that operators make stand in for a device's allocator
(tests/memory_faults/stand_in.py). Everything else is what a run on a GPU does: an operations file of its settings, the
peak of its steps by phase, the engine's state, the census behind the step that counts, the summary, with the run's own
band (trainer/metrics/summary.py). Right is: the part that was planted is named, a clean run is not marked. Found
lies in reports/raw/memory-faults.json, so a run may be stopped and started again; a result holds until trainer/ or this
suite changes. Exit codes: 0 all right; 1 not; 2 no case has such a name.
"""

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratlab_spec.run_directory import write_json
from tests.memory_faults.case import CASES, Case
from tests.memory_faults.running import judge, run_case
from trainer.metrics.summary import BAND_PCT

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "reports" / "raw" / "memory-faults.json"
KEPT = ("trainer", "tests/memory_faults")


def main(arguments: Sequence[str] | None = None, results: Path = FOUND) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.memory_faults", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names of cases; all by default")
    asked = parser.parse_args(arguments)
    chosen = [case for case in CASES if not asked.names or any(name in case.name for name in asked.names)]
    if not chosen:
        print(f"no case has one of {asked.names} in its name, as {CASES[0].name!r} has", file=sys.stderr)
        return 2
    tree = _read_tree()
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    rows = found.get("cases", {}) if found.get("tree") == tree else {}
    data = results.with_name("memory-faults-data")
    if not rows:
        shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(chosen, 1):
        if case.name not in rows or "failure" in rows[case.name]:
            rows[case.name] = run_case(case, data)
        row = rows[case.name]
        row["wrong"] = judge(case, row)
        print(f"{number}/{len(chosen)}  {_describe(case, row)}", flush=True)
        counts = _count([each for each in CASES if each.name in rows], rows)
        write_json(results, {"tree": tree, "band_pct": BAND_PCT, **counts, "cases": rows})
    print(" ".join(f"{name.replace('_', ' ')}: {number}." for name, number in _count(chosen, rows).items()))
    return 1 if any(rows[case.name]["wrong"] for case in chosen) else 0


def _count(cases: Sequence[Case], rows: dict[str, Any]) -> dict[str, int]:
    wrong = {True: [], False: []}  # type: dict[bool, list[bool]]
    for case in cases:
        wrong[bool(case.fault)].append(bool(rows[case.name]["wrong"]))
    return {
        "faults_planted": len(wrong[True]), "faults_named": wrong[True].count(False),
        "clean_runs": len(wrong[False]), "clean_runs_marked": wrong[False].count(True),
    }  # fmt: skip


def _describe(case: Case, row: dict[str, Any]) -> str:
    verdict = f"  <-- WRONG: {row['wrong']}" if row["wrong"] else ""
    if "failure" in row:
        return f"{case.name:34} {row['seconds']:6.1f} s{verdict}\n{row['failure'][-1500:]}"
    error = row["summary"].get("forecast_memory_error_pct", float("nan"))
    named = row["summary"].get("forecast_memory_deviates") or "-"
    return f"{case.name:34} {row['seconds']:6.1f} s  foreseen {error:+6.2f} %  names {named}{verdict}"


def _read_tree() -> str:
    """Hash of the trainer and of what this suite runs, as they are here."""
    found = (path for folder in KEPT for path in (ROOT / folder).rglob("*.py"))
    content = [path.read_bytes() for path in sorted(found) if not path.name.startswith("test_")]
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
