"""Do two runs compute the same training? Losses and gradient norms of the first steps, pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from stratlab.run_directory.record import RunRecord

FIRST_STEPS = 20  # later, rounding that differs by the order of a sum has grown into another path


def loss_agreement(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Largest difference of the training losses over the first steps, and of the first gradient norm.

    Returns:
        first_steps: how many steps are looked at.
        pairs: [{runs: [a, b], steps: how many both have, max_abs_loss_difference, max_rel_loss_difference (to the loss
            of the step), loss_difference_pct (the largest one, relative to the mean loss of these steps),
            first_grad_norm_difference}]; None where a run lacks the numbers. What is allowed, and whether they agree,
            is added by `same_training.split_groups`.
        max_abs_loss_difference, max_grad_norm_difference: over all pairs, or None.
    """
    pairs = [_pair(a, b) for a, b in combinations([run for run in runs if run.status == "finished"], 2)]
    return {
        "first_steps": FIRST_STEPS,
        "pairs": pairs,
        "max_abs_loss_difference": _largest([pair["max_abs_loss_difference"] for pair in pairs]),
        "max_grad_norm_difference": _largest([pair["first_grad_norm_difference"] for pair in pairs]),
    }


def _pair(a: RunRecord, b: RunRecord) -> dict[str, Any]:
    first, second = a.series("train", "loss"), b.series("train", "loss")
    steps = [step for step in first if step in second and step <= FIRST_STEPS]
    largest = _largest([abs(first[s] - second[s]) for s in steps])
    mean = statistics.fmean([(abs(first[s]) + abs(second[s])) / 2 for s in steps]) if steps else 0.0
    norms = [run.series("train", "grad_norm").get(1) for run in (a, b)]
    return {
        "runs": [a.name, b.name],
        "steps": len(steps),
        "max_abs_loss_difference": largest,
        "max_rel_loss_difference": _largest(
            [abs(first[s] - second[s]) / max(abs(first[s]), abs(second[s]), 1e-30) for s in steps]
        ),
        "loss_difference_pct": None if largest is None else 100 * largest / max(mean, 1e-30),
        "first_grad_norm_difference": _distance(*norms),
    }


def _distance(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else abs(a - b)


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
