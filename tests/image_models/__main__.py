"""Trains every image network under every strategy with the real worker, killed once and gone on, and judges each run.

    python -m tests.image_models                     # every cell without a result for this tree
    python -m tests.image_models mobilenet zero3     # the cells whose names have all these words; one process with them

A cell: 60 to 150 steps on the digits, at 32 x 32; the last rank is killed behind two thirds of them, and the run is
started again. It must have every step, a loss that falls, its evaluations, go on from its checkpoint with the losses
that it had before, hold a tensor that DeepSpeed's stage 3 gathers, and begin with the losses of one process (of some
networks in fp64: running.py). What is found lies in reports/raw/image-models-cells.json after each cell, so a run may
be stopped and started again; a result holds until trainer/, this suite or its own settings change. At the end
reports/raw/image-models.json has what became of each, which `make nightly` keeps in reports/image-models.json, and
reports/image-models.md the same as a table when every cell has run. Exit codes: 0 all as it should be; 1 not; 2 no cell
has such a name.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratlab_spec.run_directory import write_json
from tests.image_models.cell import Cell, list_cells
from tests.image_models.found import (
    Found,
    judge,
    measure_exact_parity,
    measure_parity,
    write_report,
    write_table,
)
from tests.image_models.running import run_cell

ROOT = Path(__file__).resolve().parents[2]
CELLS = ROOT / "reports" / "raw" / "image-models-cells.json"
FOUND, TABLE = "image-models.json", "image-models.md"
"""Beside it, and in the folder above."""
LISTS = ("norms", "started_from", "judged", "exact_losses", "exact_norms")
KEPT = ("trainer", "tests/image_models", ":(exclude)tests/image_models/cell.py")
"""A result holds until one of these changes, or what its cell says (Cell.key)."""


def main(arguments: Sequence[str] | None = None, results: Path = CELLS) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.image_models", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="model, strategy; all cells by default")
    words = parser.parse_args(arguments).words
    cells = list_cells()
    chosen = [cell for cell in cells if all(word in cell.name.split() for word in words)]
    if not chosen:
        print(f"no cell has all of {words} in its name, as {cells[0].name!r} has", file=sys.stderr)
        return 2
    alone = {Cell(cell.model, "single") for cell in chosen}
    chosen = [cell for cell in cells if cell in alone or cell in chosen]
    tree = _read_tree()
    rows: dict[str, Any] = json.loads(results.read_text())["cells"] if results.exists() else {}
    keys = {cell.name: cell.key(tree) for cell in cells}
    rows = {name: row for name, row in rows.items() if row["key"] == keys.get(name)}
    todo = [cell for cell in chosen if "failure" in rows.get(cell.name, {"failure": ""})]
    began, found = time.monotonic(), results.with_name(FOUND)
    results.parent.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(todo, 1):
        row = rows[cell.name] = {"key": keys[cell.name], **run_cell(cell)}
        _judge_if_possible(cell, rows)
        write_json(results, {"cells": rows})
        minutes = (time.monotonic() - began) / 60
        print(f"{number}/{len(todo)}  {minutes:5.1f} min  {_line(cell, row)}", flush=True)
    for cell in chosen:  # again: one process may have failed when this cell had run
        _judge_if_possible(cell, rows)
    wrong = [cell.name for cell in chosen if rows[cell.name].get("complaints", ["was not judged"])]
    facts = write_report(found, cells, rows)
    if all(cell.name in rows for cell in cells):
        results.parents[1].joinpath(TABLE).write_text(write_table(facts))
    listed = f"; not: {', '.join(wrong)}" if wrong else ""
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} cells are as they must be{listed}")
    return 1 if wrong else 0


def _judge_if_possible(cell: Cell, rows: dict[str, Any]) -> None:
    """Adds the verdict to the cell's row, where it and one process have ended."""
    both = (cell.name, Cell(cell.model, "single").name)
    if not all("found" in rows.get(name, {}) for name in both):
        return
    found, alone = (_as_found(rows[name]["found"]) for name in both)
    rows[cell.name] |= {
        "complaints": judge(cell, found, alone),
        "parity": measure_parity(found, alone),
        "exact_parity": measure_exact_parity(found, alone) if cell.exact else None,
        "loss": [sum(found.first()) / len(found.first()), sum(found.last()) / len(found.last())],
    }


def _as_found(row: dict[str, Any]) -> Found:
    """JSON has texts for numbers where they are keys, and lists for tuples."""
    losses = {
        int(attempt): {int(step): loss for step, loss in steps.items()}
        for attempt, steps in row["losses"].items()
    }
    return Found(**row | {name: tuple(row[name]) for name in LISTS} | {"losses": losses})


def _line(cell: Cell, row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{cell.name:28}  {row['seconds']:6.1f} s  FAILED: {row['failure'][-600:]}"
    if "complaints" not in row:
        return f"{cell.name:28}  {row['seconds']:6.1f} s  not judged: one process failed"
    first, last = row["loss"]
    outcome = "; ".join(row["complaints"]) or "as it must be"
    exact = "  in fp64 {:.1e}, {:.1e}".format(*row["exact_parity"]) if row["exact_parity"] else ""
    seen = f"loss {first:.3f} -> {last:.3f}  parity {row['parity'][0]:.1e}, {row['parity'][1]:.1e}{exact}"
    return f"{cell.name:28}  {row['seconds']:6.1f} s  {seen}  {outcome}"


def _read_tree() -> str:
    """Of the trainer and of this suite as they are here, changes that are not committed too."""
    asked = ("git", "ls-files", "-s", *KEPT), ("git", "diff", "HEAD", "--", *KEPT)
    return "".join(subprocess.run(each, cwd=ROOT, capture_output=True, text=True).stdout for each in asked)


if __name__ == "__main__":
    sys.exit(main())
