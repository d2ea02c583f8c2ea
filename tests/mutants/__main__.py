"""Plants the slips of tests/mutants/slips one at a time in a copy of the tree: do the tests that are named see each?

    python -m tests.mutants                          # every slip without a result for this tree
    python -m tests.mutants p95-index nd-clips-up    # these
    python -m tests.mutants --again                  # also those that are known to be caught

A test that sees a slip has to pass without it. What has been found lies in reports/raw/mutants.json, so a run may be
stopped and started again; a result holds until the slip, its file, its tests' files or what those import of tests/
(with the conftest.py files above them) change. Exit codes: 0 of the slips that a user can see 98 % are caught, 95 % by
`make test`, 85 % by `make test-fast` (of slips that are named: all are caught); 1 fewer; 2 the table names a slip, a
text or a test that is not there.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.planting import (
    Count,
    Found,
    RunTests,
    WarmTests,
    copy_tree,
    count_slips,
    plant_all,
    read_found,
    write_found,
)
from tests.mutants.slip import Slip, build_key, find_problems, read_slips

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("slips")
FOUND = ROOT / "reports" / "raw" / "mutants.json"


def main(
    arguments: Sequence[str] | None = None,
    root: Path = ROOT,
    table: Path = TABLE,
    results: Path = FOUND,
    run: RunTests | None = None,
) -> int:
    """Prints a line per slip, and what became of all; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests.mutants", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="SLIP", help="names in the table; all by default")
    parser.add_argument("--again", action="store_true", help="also those that have been seen")
    parser.add_argument("--workers", type=int, default=2, help="slips at a time, each in a copy of its own")
    asked = parser.parse_args(arguments)
    slips = read_slips(table)
    known = [slip.name for slip in slips]
    problems = find_problems(slips, root)
    problems += [f"{name}: no slip of the table" for name in asked.names if name not in known]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    chosen = [slip for slip in slips if not asked.names or slip.name in asked.names]
    found = {name: row for name, row in read_found(results).items() if name in known}
    todo = [slip for slip in chosen if asked.again or not _is_settled(slip, found.get(slip.name), root)]
    for slip in chosen:
        if slip not in todo:
            _say(found[slip.name], slip, "seen before")
    if todo:
        with contextlib.ExitStack() as stack:
            trees = [stack.enter_context(copy_tree(root)) for _ in range(min(asked.workers, len(todo)))]
            ask = run or stack.enter_context(WarmTests())
            for number, (slip, row) in enumerate(plant_all(todo, trees, ask), 1):
                found[slip.name] = row
                write_found(found, None, results)
                _say(row, slip, f"{number}/{len(todo)}")
    count = count_slips(chosen, found)
    write_found(found, None if asked.names else count, results)
    return _judge(count, bool(asked.names))


def _is_settled(slip: Slip, row: Found | None, root: Path) -> bool:
    if row is None or row.key != build_key(slip, root):
        return False
    return row.outcome == "caught" or (row.outcome == "survived" and bool(slip.equivalent))


def _say(row: Found, slip: Slip, note: str) -> None:
    outcome = "equivalent" if slip.equivalent and row.outcome == "survived" else row.outcome
    print(
        f"{outcome:10}  {row.tier:6}  {slip.name:32}  {row.seconds:5.1f} s  {note:11}  {slip.file}",
        flush=True,
    )


def _judge(count: Count, named: bool) -> int:
    by_all, by_change, by_fast = count.percent
    print(
        f"planted {count.planted}, caught {count.caught} ({by_all:.1f} %), by `make test` "
        f"{count.caught_by_change} ({by_change:.1f} %), by `make test-fast` {count.caught_by_fast} "
        f"({by_fast:.1f} %), named as equivalent {count.equivalent}, "
        f"survived {len(count.survived)}"
    )
    if count.survived:
        print(f"not caught: {', '.join(count.survived)}")
    if named:
        return 1 if count.survived else 0
    return 0 if count.is_enough else 1


if __name__ == "__main__":
    sys.exit(main())
