"""How far repeats of one thing lie apart by chance, and so from which difference on one may speak of a difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Student's t, two-sided 95 %, by degrees of freedom: a table of every textbook
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_95 = 1.96
METHOD = "pooled standard deviation of the repeats' values, relative to their mean, times Student's t (95 %)"
NO_BAND = "one repeat: no band"


@dataclass(frozen=True)
class Band:
    """What one more repeat would differ by.

    Attributes:
        relative: half width of the band around one run, as a share of its value.
        degrees: of freedom: repeats minus groups, over all groups with at least two.
        repeats: values that went in.
    """

    relative: float
    degrees: int
    repeats: int

    def of_difference(self, a: float, b: float, repeats_a: int = 1, repeats_b: int = 1) -> float:
        """Half width of the band around a - b; with repeats: of the difference of their means."""
        return self.relative * math.sqrt(a * a / repeats_a + b * b / repeats_b)


def build_band(groups: Sequence[Sequence[float]]) -> Band | None:
    """Pools the spread of all groups of repeats; None without any repeat. Slow and fast runs are taken to spread
    equally in relation to their value.

    Args:
        groups: the values of the repeats, one group for each thing that was repeated; single ones do not count.
    """
    repeated = [list(group) for group in groups if len(group) > 1 and statistics.fmean(group) > 0]
    degrees = sum(len(group) - 1 for group in repeated)
    if not degrees:
        return None
    squares = sum(sum((value / statistics.fmean(group) - 1) ** 2 for value in group) for group in repeated)
    return Band(get_t_95(degrees) * math.sqrt(squares / degrees), degrees, sum(map(len, repeated)))


def get_t_95(degrees: int) -> float:
    """Student's t, two-sided 95 %; beyond the table at most 1 % too large."""
    return T_95[degrees - 1] if degrees <= len(T_95) else Z_95 + 2.5 / degrees


def get_band(rows: Sequence[Mapping[str, Any]], variants: Sequence[Sequence[str]]) -> Band | None:
    """The band of the median step times."""
    steps = {row["run"]: row["step_time_ms_p50"] for row in rows if row["status"] == "finished"}
    return build_band([[steps[name] for name in names if steps.get(name)] for names in variants])


def build_noise(rows: Sequence[Mapping[str, Any]], variants: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What the report says about repeats.

    Returns:
        method, relative_pct (half width, None without repeats), degrees, repeats (runs that went in), variants: [[runs
        that are repeats of each other]], and noise_ms: run -> half width of the band around its median step.
    """
    band = get_band(rows, variants)
    known = [row for row in rows if row["status"] == "finished" and row["step_time_ms_p50"]]
    return {
        "method": METHOD if band else NO_BAND,
        "relative_pct": 100 * band.relative if band else None,
        "degrees": band.degrees if band else 0,
        "repeats": band.repeats if band else 0,
        "variants": [list(names) for names in variants],
        "noise_ms": {row["run"]: band.relative * row["step_time_ms_p50"] if band else None for row in known},
    }
