"""The memory of every strategy, counted by trainer.memory_estimation, against arithmetic and earlier counts.

    python -m benchmarks.memory                             # everything: half an hour of one core
    python -m benchmarks.memory --only "vit_huge fsdp"      # names that begin like that
    python -m benchmarks.memory --smallest
    python -m benchmarks.memory --record                    # make these counts the expected ones

Three yardsticks. By arithmetic a strategy holds its share of the state, the blocks in use, and the memory of the same
work in one process: within 5 %. A peak that the lab promises must be kept. And each cause must equal its last record
(expected.json), within 1 %: a change of an engine on purpose needs a new record, and its difference is reviewed with
the change.

Each configuration is counted in a process forked from a warm one, so that its memory is freed. Counts for this state
of `trainer/` and these libraries are kept in the report and not repeated. Ends with 1 if a figure is outside, with 0
if all requested ones are inside.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path

from benchmarks.memory.configurations import (
    CONFIGURATIONS,
    SMALLEST,
    Configuration,
    count_one,
    describe_code,
    warm_up,
)
from benchmarks.memory.report import RECORD, Report
from stratlab_spec.run_directory import write_json


def main(arguments: list[str]) -> int:
    """Judge the counts; return 0, or 1 if a figure is out of tolerance or a count has failed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.memory", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smallest", action="store_true", help="only the fastest ones")
    parser.add_argument("--only", metavar="NAME", default="", help="only names that begin with NAME")
    parser.add_argument("--record", action="store_true", help="make today's counts the expected ones")
    parser.add_argument("--output", type=Path, default=Path("reports/memory.json"), help="(%(default)s)")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2), help="at a time (%(default)s)")
    given = parser.parse_args(arguments)
    named = [one for one in CONFIGURATIONS if one.name.startswith(given.only)]
    if given.smallest:
        named = [one for one in CONFIGURATIONS if one.name in SMALLEST]
    if not named:
        known = "\n  ".join(one.name for one in CONFIGURATIONS)
        print(f"--only={given.only!r}: no such configuration; expected the beginning of\n  {known}")
        return 2
    references = {one.alone for one in named}  # of one process, which the arithmetic needs
    chosen = [one for one in CONFIGURATIONS if one in named or one.name in references]
    warm_up()
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {"gib": {}}
    code = describe_code()
    report = Report(given.output, code, recorded)
    waiting = [one for one in chosen if not report.has(one)]
    _say(f"{len(chosen)} configurations, {len(chosen) - len(waiting)} counted already")
    if waiting:
        _count_all(waiting, given.processes, report)
    if given.record:
        fresh = report.recorded()
        write_json(RECORD, fresh | {"gib": recorded["gib"] | fresh["gib"]})
        report = Report(given.output, code, json.loads(RECORD.read_text()))
    return report.judge(chosen)


def _count_all(waiting: list[Configuration], processes: int, report: Report) -> None:
    began, done = time.perf_counter(), 0
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for one, found in pool.imap_unordered(count_one, waiting, chunksize=1):
            done += 1
            line = report.add(one, found)
            _say(f"{done}/{len(waiting)}  {time.perf_counter() - began:5.0f} s  {line}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
