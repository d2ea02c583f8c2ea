"""How far two points of a search may lie apart by chance: from the seeds, or from the number of samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.compare.judging.noise import Z_95, get_t_95
from stratlab.compare.judging.search_goal import Goal
from stratlab.compare.judging.winners import LEAST_LEAD_PCT
from stratlab.run_directory.record import RunRecord


def pool_seeds(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Pooled standard deviation of the seeds' values around the mean of their point, and its degrees of freedom."""
    degrees = sum(len(values) - 1 for values in groups)
    if not degrees:
        return 0.0, 0
    squares = sum(sum((value - statistics.fmean(values)) ** 2 for value in values) for values in groups)
    return math.sqrt(squares / degrees), degrees


def find_difference_noise(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    goal: Goal,
    spread: float,
    degrees: int,
    runs: Sequence[RunRecord],
) -> tuple[float, str]:
    """Half width of the difference of two points, and where it comes from."""
    same_seed = max(a["same_seed"], b["same_seed"])
    if degrees:
        width = get_t_95(degrees) * spread * math.sqrt(1 / a["seeds"] + 1 / b["seeds"])
        return max(width, same_seed), (
            "pooled standard deviation of the seeds, times Student's t (95 %), of the difference of two means"
        )
    samples = min((_count_samples(run, goal) for run in runs), default=0)
    if samples:
        shares = [point["value"] / 100 for point in (a, b)]
        width = 100 * Z_95 * math.sqrt(sum(share * (1 - share) for share in shares) / samples)
        return max(width, 100 / samples, same_seed), (
            f"one seed each: what another {samples} samples would change by chance (95 %)"
        )
    width = LEAST_LEAD_PCT / 100 * max(abs(a["value"]), abs(b["value"]))
    return max(width, same_seed), f"one seed each: differences below {LEAST_LEAD_PCT:g} % count as none"


def _count_samples(run: RunRecord, goal: Goal) -> int:
    found = (run.config.get("resolved") or {}).get(goal.samples) if goal.samples else None
    return found if isinstance(found, int) else 0
