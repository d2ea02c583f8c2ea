"""What the notebooks share: the top of the repository, the command line as tables, and plots.

from workbench import plot_bars, start

start()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a7400", "#6e6e6e")
"""Okabe and Ito's, as on stratlab's pages."""
PLACES = {
    "parameter": 0, "gathered": 0, "gradient": 1, "optimizer": 2, "activation": 3, "compute": 0, "communication": 1,
    "straggler": 3, "not_traced": 7, "waiting for data": 4, "host": 5,
}  # fmt: skip
"""Beginning or end of a name -> its colour, the same in every plot."""
LIGHTER = ("gathered", "buckets", "low-precision", "master")
"""What belongs to a part has its colour, lighter."""
WIDTH, ROW, MARGIN, DPI = 7.0, 0.34, 1.1, 80
MOST_PARTS = 6


def start() -> None:
    """Goes to the top of the repository, where charts and examples lie."""
    while not Path("examples").is_dir() and Path.cwd() != Path("/"):
        os.chdir("..")


def run_stratlab(*words: object) -> str:
    """What a command prints; exit code 10, nothing fits, is an answer too."""
    command = [sys.executable, "-m", "stratlab", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 10), done.stderr
    return done.stdout


def predict(*words: object) -> pd.DataFrame:
    """`stratlab predict ... --json` as a table."""
    return pd.DataFrame(json.loads(run_stratlab("predict", *words, "--json"))).set_index("name")


def read_losses(runs: Mapping[str, Any]) -> pd.DataFrame:
    """Training loss by step, a column for each run of `open_run`."""
    return pd.DataFrame(
        {
            name: {line["step"]: line["loss"] for line in run.metrics if line["kind"] == "train"}
            for name, run in runs.items()
        }
    )


def plot_bars(table: pd.DataFrame, unit: str, limit: float | None = None) -> None:
    """A bar for each row, its columns side by side, its sum at the end; small columns are drawn as one. What is below
    zero goes to the left.

    Args:
        limit: a line at this value.
    """
    import matplotlib.pyplot as plt

    table = _join_small(table.astype(float).fillna(0.0))
    _, axes = plt.subplots(figsize=(WIDTH, MARGIN + ROW * len(table)), dpi=DPI)
    ends = {True: pd.Series(0.0, table.index), False: pd.Series(0.0, table.index)}
    for place, part in enumerate(table):
        alpha = 0.45 if any(word in part for word in LIGHTER) else 1.0
        for sign in (True, False):  # below zero to the left, above zero to the right
            values = table[part].clip(lower=0) if sign else table[part].clip(upper=0)
            bars = axes.barh(
                table.index, values, left=ends[sign], color=_choose_colour(part, place), alpha=alpha
            )
            ends[sign] += values
        bars.set_label(part)
    for row, (total, end) in enumerate(zip(table.sum(axis=1), ends[True], strict=True)):
        axes.text(end, row, f"  {total:,.4g}", va="center")
    if limit is not None:
        axes.axvline(limit, color="#b3261e")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    _finish(axes, unit, "")


def plot_lines(table: pd.DataFrame, x_label: str, y_label: str) -> None:
    """A line for each column over the index."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(WIDTH, 2.6), dpi=DPI)
    for place, (name, column) in enumerate(table.items()):
        style = ("-", "--", ":", "-.")[place % 4]  # lines that coincide all show
        axes.plot(table.index, column, style, label=name, color=PALETTE[place % len(PALETTE)], marker=".")
    _finish(axes, x_label, y_label)


def plot_matrix(table: pd.DataFrame, x_label: str, y_label: str) -> None:
    """Cells as dark as their number."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(4.2, 3.6), dpi=DPI)
    axes.imshow(table, cmap="Blues")
    axes.set_xticks(range(len(table.columns)), table.columns)
    axes.set_yticks(range(len(table.index)), table.index)
    axes.set(xlabel=x_label, ylabel=y_label)
    plt.show()


def _finish(axes: Any, x_label: str, y_label: str) -> None:
    import matplotlib.pyplot as plt

    axes.set(xlabel=x_label, ylabel=y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=9)
    plt.tight_layout()
    plt.show()


def _join_small(table: pd.DataFrame) -> pd.DataFrame:
    """The largest columns in their order, and the sum of the rest."""
    if len(table.columns) <= MOST_PARTS:
        return table
    kept = table.sum().abs().nlargest(MOST_PARTS - 1).index
    large = table[[name for name in table if name in kept]]
    return large.assign(rest=table.sum(axis=1) - large.sum(axis=1))


def _choose_colour(part: str, place: int) -> str:
    if part == "rest":
        return "#c9c9c9"
    found = next((number for name, number in PLACES.items() if name in part), place)
    return PALETTE[found % len(PALETTE)]
