"""The memory of every strategy, counted by trainer.counting and held against figures of an independent count.

    python -m benchmarks.memory                             # everything: half an hour of one core
    python -m benchmarks.memory --only "vit_huge fsdp"      # whose names begin like that
    python -m benchmarks.memory --smallest

Each configuration is counted in a process forked from a warm one, so that its memory is given back. What is counted
for this state of `trainer/` and these libraries is kept in the report and not counted again. Ends with 1 if a figure
is out of 1 %, with 0 if all that were asked for are inside. Figures are those of expected.py, with their origin.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

from benchmarks.memory.counting import count_one, describe_code, warm_up
from benchmarks.memory.expected import EXPECTED, SMALLEST, Expected
from benchmarks.memory.report import Report


def main(arguments: list[str]) -> int:
    """0, or 1 where a figure is out of tolerance or a count has failed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.memory", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smallest", action="store_true", help="only what takes the least time")
    parser.add_argument("--only", metavar="NAME", default="", help="only what begins with NAME")
    parser.add_argument("--output", type=Path, default=Path("reports/memory.json"), help="(%(default)s)")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2), help="at a time (%(default)s)")
    given = parser.parse_args(arguments)
    chosen = [one for one in EXPECTED if one.name.startswith(given.only)]
    if given.smallest:
        chosen = [one for one in EXPECTED if one.name in SMALLEST]
    if not chosen:
        known = "\n  ".join(one.name for one in EXPECTED)
        print(f"--only={given.only!r}: no such configuration; expected the beginning of\n  {known}")
        return 2
    warm_up()
    report = Report(given.output, describe_code())
    waiting = [one for one in chosen if not report.has(one)]
    _say(f"{len(chosen)} configurations, {len(chosen) - len(waiting)} counted already")
    if waiting:
        _count_all(waiting, given.processes, report)
    return report.judge(chosen)


def _count_all(waiting: list[Expected], processes: int, report: Report) -> None:
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
