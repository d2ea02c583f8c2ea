"""The list of runs as a table on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from stratlab.list.run_list import ListedRun
from stratlab.number import format_number
from stratlab.run_directory.record import AT_WORK

COLOURS = {"finished": "green", "failed": "red", "stopped": "yellow", "unfinished": "yellow", AT_WORK: "cyan"}


def build_table(runs: Sequence[ListedRun]) -> Table:
    """One line per run. Why a run failed stands below it; columns that no run fills are left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    cells = {
        "run": [Text(f"{run.comparison}/{run.run}") for run in runs],
        "status": [Text(run.status, style=COLOURS.get(run.status, "bold")) for run in runs],
        "strategy": [Text(run.strategy or "") for run in runs],
        "model": [Text(run.model or "") for run in runs],
        "ranks": [Text(format_number(run.world_size, 0) if run.world_size else "") for run in runs],
        "step": [Text(_say_step(run)) for run in runs],
        "mean samples/s": [
            Text(format_number(run.samples_per_s, 1) if run.samples_per_s else "") for run in runs
        ],
        "attempts": [Text(str(run.attempts) if run.attempts > 1 else "") for run in runs],
        "started (UTC)": [Text((run.started or "")[:16].replace("T", " ")) for run in runs],
        "resource": [Text(run.resource) for run in runs],
        "how it ended": [Text(run.ending if run.status == "failed" else "", style="red") for run in runs],
    }
    shown = {name: column for name, column in cells.items() if any(cell.plain for cell in column)}
    for name in shown:
        is_number = name in ("ranks", "step", "mean samples/s", "attempts")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    return table


def _say_step(run: ListedRun) -> str:
    if run.step is None:
        return ""
    return f"{run.step}/{run.steps}" if run.steps else str(run.step)
