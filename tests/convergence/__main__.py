"""Trains every strategy for hundreds of steps from three seeds and compares where it ends with one process.

    python -m tests.convergence                      # every course without a result for this tree
    python -m tests.convergence vit_tiny bf16        # those whose names hold all these words, and one process with them
    python -m tests.convergence --steps 50 "seed 0"  # shorter ones, to see how long they take

Per seed the loss of the validation split must not differ from that of one process by more than a quarter of what the
seeds differ among each other. Gradients that are 5 % too large, with SGD, must. What is found lies in
reports/raw/convergence.json, so a run may be stopped and started again; a result holds until trainer/ changes.
Exit codes: 0 all as it should be; 1 not; 2 no course has such a name.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratlab_spec.run_directory import write_json
from tests.convergence.course import ALLOWED, STEPS, Course, Verdict, alone, judge, list_courses, run_course
from tests.ranks import fork_ranks
from trainer.prepare.preparation import ensure_cache

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "reports" / "raw" / "convergence.json"
LIMIT_S = 1800.0


def main(arguments: Sequence[str] | None = None, results: Path = FOUND) -> int:
    """A line per course and per verdict; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.convergence", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the names of courses; all by default")
    parser.add_argument("--steps", type=int, default=STEPS, help="of every course")
    asked = parser.parse_args(arguments)
    courses = list(list_courses(asked.steps))
    chosen = [course for course in courses if all(word in course.name for word in asked.words)]
    if not chosen:
        print(f"no course has all of {asked.words} in its name, as {courses[0].name!r} has", file=sys.stderr)
        return 2
    data, tree = results.with_name("convergence-data"), _read_tree()
    wanted = {each.name for course in chosen for each in (course, alone(course))}
    keys = {course.name: course.key(tree) for course in courses}
    rows: dict[str, Any] = json.loads(results.read_text())["courses"] if results.exists() else {}

    def known() -> dict[str, float]:
        """Final loss of every course that has been run on this tree."""
        valid = {name: row for name, row in rows.items() if row["key"] == keys.get(name)}
        return {name: row["loss"] for name, row in valid.items() if "loss" in row}

    todo = [course for course in courses if course.name in wanted - known().keys()]
    for number, course in enumerate(todo, 1):
        if course.config(data).is_text:
            ensure_cache(course.config(data), lambda text: None)
        row = rows[course.name] = _run(course, data, keys[course.name])
        outcome = f"{row['first']:.4f} -> {row['loss']:.4f}" if "loss" in row else row["failure"][-500:]
        print(f"{number}/{len(todo)}  {course.name:48}  {row['seconds']:6.1f} s  {outcome}", flush=True)
        _write(results, {"courses": rows})
    verdicts = judge(courses, known())
    _write(results, {"courses": rows, "verdicts": [_describe(verdict) for verdict in verdicts]})
    for verdict in verdicts:
        _say(verdict)
    return 0 if all(verdict.holds for verdict in verdicts) and wanted <= known().keys() else 1


def _run(course: Course, data: Path, key: str) -> dict[str, Any]:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        ranks = fork_ranks(lambda: run_course(course, data, out), course.world_size, timeout_s=LIMIT_S)
        row: dict[str, Any] = {"key": key, "seconds": round(time.perf_counter() - began, 1)}
        if out.exists() and not any(rank.exit_code for rank in ranks):
            return row | json.loads(out.read_text())
        return row | {"failure": "\n".join(rank.output for rank in ranks if rank.exit_code)}


def _read_tree() -> str:
    """Of the trainer as it is here, changes that are not committed too."""
    asked = ("git", "ls-files", "-s", "trainer"), ("git", "diff", "HEAD", "--", "trainer")
    return "".join(subprocess.run(each, cwd=ROOT, capture_output=True, text=True).stdout for each in asked)


def _describe(verdict: Verdict) -> dict[str, Any]:
    names = ("model", "layout", "precision", "optimizer", "faulty", "steps")
    found = {name: getattr(verdict.course, name) for name in names}
    judged = ("differences", "spread", "share", "holds")
    return found | {name: getattr(verdict, name) for name in judged}


def _say(verdict: Verdict) -> None:
    name = verdict.course.name.replace(f" seed {verdict.course.seed}", "")
    outcome = ("ends there" if verdict.passes else "ends elsewhere") + (
        "" if verdict.holds else "  <-- WRONG"
    )
    print(f"{name:48}  {verdict.share:6.3f} of the seeds' spread (allowed {ALLOWED})  {outcome}")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


if __name__ == "__main__":
    sys.exit(main())
