"""What a cell's run has left in its directory, whether that is what it must be, and the report on all cells."""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tests import parity_report
from tests.image_models.cell import Cell

LEAST_STEPS = 50
AMONG = 5
"""Steps at either end whose losses are averaged, and first steps that are compared with one process."""
FALLEN = 0.8
"""The last losses, of the first ones: at most."""
REPEATED = 1e-4
"""Largest difference of a loss that was computed before the kill and again after it."""
PARITY, NORM_PARITY = 1e-4, 1e-3
"""Largest difference from one process in the first steps, of the loss and of the gradient's norm: relative to them, for
rounding grows from step to step. AdamW's updates do not tell a gradient of another scale; its norm does."""

EXACT_PARITY, EXACT_NORM_PARITY = 1e-6, 1e-4
"""The same where those steps are done in fp64: some twenty times what weights come to that differ by 1e-7, as
DeepSpeed's fp32 copies do (4.5e-8, 4.3e-6). Of the run itself, in fp32, the first step alone is compared then."""
EXACT_FILE = "exact.json"
"""In the run directory."""


@dataclass(frozen=True)
class Found:
    """What one run came to."""

    losses: Mapping[int, Mapping[int, float]]
    norms: tuple[float, ...]
    started_from: tuple[int, ...]
    steps: int
    largest: int
    judged: tuple[int, int]
    validations: int
    accuracy_pct: float
    exact_losses: tuple[float, ...] = ()
    exact_norms: tuple[float, ...] = ()

    def first(self) -> list[float]:
        return [self.losses.get(1, {}).get(step, math.nan) for step in range(1, AMONG + 1)]

    def last(self) -> list[float]:
        """Losses of the last steps, of the last attempt."""
        newest = self.losses.get(max(self.losses, default=0), {})
        return [newest.get(step, math.nan) for step in range(self.steps - AMONG + 1, self.steps + 1)]


def read_found(folder: Path) -> Found:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses: dict[int, dict[int, float]] = {}
    for line in lines:
        if line["kind"] == "train" and "loss" in line:
            losses.setdefault(line["attempt"], {})[line["step"]] = line["loss"]
    norms = {
        line["step"]: line["grad_norm"] for line in lines if line["kind"] == "train" and line["attempt"] == 1
    }
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    test, summary = _read(folder / "evaluation.json"), _read(folder / "summary.json")
    exact = _read(path) if (path := folder / EXACT_FILE).exists() else {"losses": (), "norms": ()}
    return Found(
        losses=losses,
        norms=tuple(norms.get(step, math.nan) for step in range(1, AMONG + 1)),
        started_from=tuple(line["from_step"] for line in attempts if line["event"] == "started"),
        steps=summary["steps"],
        largest=max(map(prod, _shapes(folder / "model" / "model.safetensors"))),
        judged=(
            sum(map(sum, test["confusion_matrix"])),
            _read(folder / "config.json")["resolved"]["test_samples"],
        ),
        validations=sum(line["kind"] == "eval" for line in lines),
        accuracy_pct=test["accuracy_pct"],
        exact_losses=tuple(exact["losses"]),
        exact_norms=tuple(exact["norms"]),
    )


def measure_parity(found: Found, alone: Found, steps: int = AMONG) -> tuple[float, float]:
    """Largest difference of the first losses and norms from one process's, relative to them; not a number where one
    is not."""
    losses = _apart(found.first()[:steps], alone.first()[:steps])
    return losses, _apart(found.norms[:steps], alone.norms[:steps])


def measure_exact_parity(found: Found, alone: Found) -> tuple[float, float]:
    """The same of the first steps in fp64; not a number where they were not done."""
    none = (math.nan,) * AMONG
    losses = _apart(found.exact_losses or none, alone.exact_losses or none)
    return losses, _apart(found.exact_norms or none, alone.exact_norms or none)


def judge(cell: Cell, found: Found, alone: Found) -> list[str]:
    """What is not as it must be, a sentence each."""
    return list(_complaints(cell, found, alone))


def _complaints(cell: Cell, found: Found, alone: Found) -> Iterator[str]:
    seen = set().union(*found.losses.values())
    if found.steps < LEAST_STEPS or seen != set(range(1, found.steps + 1)):
        yield f"{found.steps} steps, of which {len(seen)} have a loss; expected each of {LEAST_STEPS} or more"
    begin, end = (sum(losses) / AMONG for losses in (found.first(), found.last()))
    if not end <= FALLEN * begin:
        yield f"the loss does not fall: {begin:.4f} at first, {end:.4f} at last"
    judged, there = found.judged
    if judged != there or not there or found.validations < 2:
        yield f"evaluated: {judged} of {there} test samples, {found.validations} validations"
    yield from _resumption(cell, found)
    if found.largest <= cell.threshold():
        yield f"the largest tensor has {found.largest} elements, no more than the threshold {cell.threshold()}"
    yield from _disparity(cell, found, alone)


def _disparity(cell: Cell, found: Found, alone: Found) -> Iterator[str]:
    steps = 1 if cell.exact else AMONG
    compared = [(f"first {steps} steps", measure_parity(found, alone, steps), (PARITY, NORM_PARITY))]
    if cell.exact:
        gates = (EXACT_PARITY, EXACT_NORM_PARITY)
        compared.append((f"first {AMONG} steps, in fp64,", measure_exact_parity(found, alone), gates))
    for which, apart, gates in compared:
        for what, by, gate in zip(("losses", "gradient norms"), apart, gates, strict=True):
            if not by <= gate:
                yield f"{what} of the {which} differ from one process's by {by:.1e} of them, allowed {gate:.0e}"


def _resumption(cell: Cell, found: Found) -> Iterator[str]:
    # the second checkpoint may not have been committed when the rank is killed
    earlier = (cell.checkpoint_every, 2 * cell.checkpoint_every)
    begun = found.started_from
    if len(begun) != 2 or begun[0] != 0 or begun[1] not in earlier:
        yield f"started from {begun}, expected from 0 and, after the kill, from {earlier[0]} or {earlier[1]}"
        return
    before, after = found.losses.get(1, {}), found.losses.get(2, {})
    if set(after) != set(range(begun[1] + 1, found.steps + 1)):
        yield f"after the kill it has {len(after)} steps, expected {begun[1] + 1} to {found.steps}"
    again = _largest(abs(before[step] - after[step]) for step in set(before) & set(after))
    if not again <= REPEATED:
        yield f"a step that was done again has another loss, by {again:.1e}"


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return _largest(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def _largest(values: Iterator[float]) -> float:
    """Not a number where one of them is not; max would hide it."""
    found = list(values)
    return math.nan if any(math.isnan(value) for value in found) else max(found, default=0.0)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _shapes(path: Path) -> list[list[int]]:
    """Of all tensors of a safetensors file: its head is JSON behind its length."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
    return [entry["shape"] for name, entry in head.items() if name != "__metadata__"]


HEAD = (
    "network", "strategy", "ranks", "steps", "loss", "test accuracy %", "fp32: losses, norms", "fp64", "s",
    "outcome",
)  # fmt: skip


def write_report(path: Path, cells: Sequence[Cell], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves commit, versions, hardware and a row per cell that has run; gives them back."""
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
