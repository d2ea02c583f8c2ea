"""Where warming up ends: a published rule, so that nobody picks the steps that suit him."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BATCH = 5
TRAINERS_OWN = 5  # steps that the trainer itself never times (trainer/outcome/tracking.py)
RULE = "MSER-5 (White 1997), never less than the first 5 steps, never more than half"
TOO_FEW = "too few steps for MSER-5: the first 5 left out"


@dataclass(frozen=True)
class Cut:
    """`steps` of the beginning do not count. `settled`: the rule found its optimum before its limit."""

    steps: int
    method: str
    settled: bool


def find_cut(times_ms: Sequence[float]) -> Cut:
    """How many of the first steps are warming up.

    MSER-5: K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69
    (1997); batches of 5: White, Cobb, Spratt 2000. Of the batch means Z of 5 steps each, the first d are dropped where
    sum((Z - mean)^2) / (m - d)^2 over the rest is smallest: the marginal standard error of the mean.

    Args:
        times_ms: step times in order, without the profiled ones.
    """
    whole = len(times_ms) // BATCH
    most = whole // 2
    least = TRAINERS_OWN // BATCH
    if most < max(least + 1, 2):
        return Cut(min(TRAINERS_OWN, len(times_ms)), TOO_FEW, False)
    # counted from the end: what does not fill a batch is at the beginning, where it is dropped anyway
    start = len(times_ms) - whole * BATCH
    means = np.asarray(times_ms[start:], float).reshape(whole, BATCH).mean(axis=1)
    dropped = range(least, most + 1)
    errors = [float(np.var(means[d:])) / (whole - d) for d in dropped]
    best = dropped[int(np.argmin(errors))]
    steps = min(start + best * BATCH, len(times_ms) // 2)
    return Cut(steps, RULE, best < most or float(np.ptp(means[least:])) == 0)
