"""Trains every image network under every strategy with the real worker, killed once and gone on, and judges each run.

    python -m tests.image_models                     # every cell without a result for this tree
    python -m tests.image_models mobilenet zero3     # the cells whose names have all these words; one process with them

A cell: 60 or 150 steps on the digits, at 32 x 32; the last rank is killed behind two thirds of them, and the run is
started again. It must have every step, a loss that falls, its evaluations, go on from its checkpoint with the losses
that it had before, hold a tensor that DeepSpeed's stage 3 gathers, and begin with the losses of one process. What is
found lies in reports/raw/image-models.json after each cell, so a run may be stopped and started again; a result holds
until trainer/ or this suite changes. Exit codes: 0 all as it should be; 1 not; 2 no cell has such a name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.image_models.cell import Cell, list_cells
from tests.image_models.found import Found, judge, measure_parity, read_found
from tests.ranks import fork_ranks
from trainer.record.run_directory import write_json

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "reports" / "raw" / "image-models.json"
LIMIT_S = 1800.0
KEPT = ("trainer", "tests/image_models")
"""A result holds until one of these changes."""
PUBLISHED = "mobilenet_v3_large-5c1a4163.pth"
"""As torchvision calls the file; here with fresh weights, for no network is there."""


def main(arguments: Sequence[str] | None = None, results: Path = FOUND) -> int:
    """A line per cell; returns the exit code."""
    words = _parser().parse_args(arguments).words
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
    for number, cell in enumerate(todo, 1):
        row = rows[cell.name] = {"key": keys[cell.name], **run_cell(cell)}
        if "failure" not in row and "failure" not in rows[Cell(cell.model, "single").name]:
            row |= _judge(cell, rows)
        _write(results, {"cells": rows})
        print(f"{number}/{len(todo)}  {_line(cell, row)}", flush=True)
    wrong = [cell.name for cell in chosen if rows[cell.name].get("complaints", ["was not judged"])]
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} cells are as they must be" + _list(wrong))
    return 1 if wrong else 0


def run_cell(cell: Cell) -> dict[str, Any]:
    """{found, seconds}, or {failure, seconds}."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="image-models-") as folder:
        results = Path(folder)
        variables = cell.variables(results) | _published(cell, results)
        fault = {
            "TRAINER_ALLOW_FAULTS": "true",
            "TRAINER_FAULT": f"kill@{cell.killed_at}:{cell.world_size - 1}",
        }
        row: dict[str, Any] = {}
        for kills in (True, False):
            ranks = fork_ranks(
                _be_worker, cell.world_size, env=variables | fault, timeout_s=LIMIT_S, grace_s=60
            )
            failed = any(rank.exit_code for rank in ranks)
            if failed != kills:
                said = "\n".join(rank.output[-1500:] for rank in ranks if rank.exit_code)
                row = {"failure": said or "it was not killed"}
                break
        else:
            row = {"found": asdict(read_found(results / cell.model / cell.strategy))}
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _be_worker() -> None:
    from trainer import worker

    raise SystemExit(worker.main())


def _published(cell: Cell, folder: Path) -> dict[str, str]:
    """Where a fine-tuned network finds its file, which has torchvision's format and 1000 classes."""
    if not cell.model.endswith("_finetuned"):
        return {}
    checkpoints = folder / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    shutil.copyfile(_write_weights(), checkpoints / PUBLISHED)
    return {"TORCH_HOME": str(folder / "torch")}


def _write_weights() -> Path:
    """By a process of its own: this one forks none, but shall not hold torch either."""
    path = Path(tempfile.gettempdir()) / f"stratlab-{os.getuid()}-{PUBLISHED}"
    code = (
        "import torch, torchvision, sys; torch.manual_seed(4); "
        "torch.save(torchvision.models.mobilenet_v3_large().state_dict(), sys.argv[1])"
    )
    if not path.exists():
        new = path.with_suffix(".new")
        subprocess.run([sys.executable, "-c", code, str(new)], check=True)
        new.replace(path)
    return path


def _judge(cell: Cell, rows: dict[str, Any]) -> dict[str, Any]:
    found, alone = (_as_found(rows[name]["found"]) for name in (cell.name, Cell(cell.model, "single").name))
    return {
        "complaints": judge(cell, found, alone),
        "parity": measure_parity(found, alone),
        "loss": [sum(found.first()) / len(found.first()), sum(found.last()) / len(found.last())],
    }


def _as_found(row: dict[str, Any]) -> Found:
    """JSON has texts for numbers where they are keys, and lists for tuples."""
    losses = {
        int(attempt): {int(step): loss for step, loss in steps.items()}
        for attempt, steps in row["losses"].items()
    }
    lists = {name: tuple(row[name]) for name in ("norms", "started_from", "judged")}
    return Found(**row | lists | {"losses": losses})


def _line(cell: Cell, row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{cell.name:28}  {row['seconds']:6.1f} s  FAILED: {row['failure'][-600:]}"
    if "complaints" not in row:
        return f"{cell.name:28}  {row['seconds']:6.1f} s  not judged: one process failed"
    first, last = row["loss"]
    outcome = "; ".join(row["complaints"]) or "as it must be"
    seen = f"loss {first:.3f} -> {last:.3f}  parity {row['parity'][0]:.1e}, {row['parity'][1]:.1e}"
    return f"{cell.name:28}  {row['seconds']:6.1f} s  {seen}  {outcome}"


def _list(names: Sequence[str]) -> str:
    return f"; not: {', '.join(names)}" if names else ""


def _read_tree() -> str:
    """Of the trainer and of this suite as they are here, changes that are not committed too."""
    asked = ("git", "ls-files", "-s", *KEPT), ("git", "diff", "HEAD", "--", *KEPT)
    return "".join(subprocess.run(each, cwd=ROOT, capture_output=True, text=True).stdout for each in asked)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.image_models", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("words", nargs="*", metavar="WORD", help="model, strategy; all cells by default")
    return parser


if __name__ == "__main__":
    sys.exit(main())
