"""What became of every cell, short enough to keep, and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import parity_report
from tests.image_models.cell import Cell
from tests.image_models.found import AMONG, EXACT_NORM_PARITY, EXACT_PARITY, NORM_PARITY, PARITY

HEAD = (
    "network",
    "strategy",
    "ranks",
    "steps",
    "loss",
    "test accuracy %",
    "fp32: losses, norms",
    "fp64",
    "s",
    "outcome",
)


def write_report(path: Path, cells: Sequence[Cell], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves commit, versions, hardware and a row per cell that has run; gives them back.

    Args:
        rows: by the cell's name, with all of its losses (__main__.py).
    """
    kept = [_keep(cell, rows[cell.name]) for cell in cells if cell.name in rows]
    facts = {
        "parity_steps": AMONG,
        "cells": len(cells),
        "as_they_must_be": sum(row["passed"] for row in kept),
    }
    return parity_report.write_report(path, None, facts | {"rows": kept})


def _keep(cell: Cell, row: Mapping[str, Any]) -> dict[str, Any]:
    complaints = row.get("complaints", [row.get("failure", "one process failed")[-600:]])
    found = row.get("found", {"steps": None, "accuracy_pct": None})
    return {
        "network": cell.model, "strategy": cell.strategy, "ranks": cell.world_size, "steps": found["steps"],
        "passed": not complaints, "complaints": complaints, "loss": row.get("loss"),
        "test_accuracy_pct": found["accuracy_pct"], "parity": row.get("parity"),
        "parity_in_fp64": row.get("exact_parity"), "seconds": row["seconds"],
    }  # fmt: skip


def write_table(facts: Mapping[str, Any]) -> str:
    """Markdown, of what `write_report` gave."""
    lines = [
        f"{facts['as_they_must_be']} of {facts['cells']} cells as they must be: {facts['commit'][:8]}, "
        f"{facts['date'][:10]}, {facts['hardware']}, gloo, one run each. Losses and gradient norms: largest relative "
        f"difference from one process in the first {AMONG} steps, allowed {PARITY:.0e}, {NORM_PARITY:.0e}; where they "
        f"were done in fp64 {EXACT_PARITY:.0e}, {EXACT_NORM_PARITY:.0e} there, and the first step alone in fp32.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
    ]
    return "\n".join([*lines, *(f"| {' | '.join(_entries(row))} |" for row in facts["rows"])]) + "\n"


def _entries(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (row["network"], row["strategy"], str(row["ranks"]), str(row["steps"] or ""))
    yield "{:.3f} to {:.3f}".format(*row["loss"]) if row["loss"] else ""
    yield "" if row["test_accuracy_pct"] is None else f"{row['test_accuracy_pct']:.1f}"
    for pair in (row["parity"], row["parity_in_fp64"]):
        yield "{:.1e}, {:.1e}".format(*pair) if pair else ""
    yield f"{row['seconds']:.0f}"
    said = " ".join("; ".join(row["complaints"]).split()).replace("|", "/")
    yield "as it must be" if row["passed"] else f"**not**: {said}"
