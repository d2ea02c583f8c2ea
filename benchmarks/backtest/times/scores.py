"""How good predictions of step times are: errors, order of pairs, regret of the fastest one, coverage of the band."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median
from typing import Any

from benchmarks.backtest.report import spread
from benchmarks.backtest.times.engine import Case

APART_PCT = 3.0
"""Pairs that differ by less are ties."""
GATE = 0.85
"""Of the card's memory: what is predicted to hold more is not recommended."""
SLOWER = 1.1


@dataclass(frozen=True)
class Predicted:
    """One judged row. `memory_share`: predicted, of the card's memory; 0 = not known."""

    case: Case
    seconds: float
    low_s: float
    high_s: float
    """The printed band that holds 90 %."""
    is_outlier: bool = False
    memory_share: float = 0.0

    @property
    def error_pct(self) -> float:
        return 100 * (self.seconds / self.case.measured_s - 1)

    @property
    def is_inside(self) -> bool:
        """Return whether the measured time is inside the printed band."""
        return self.low_s <= self.case.measured_s <= self.high_s

    @property
    def half_width_pct(self) -> float:
        """Return half of the width of the printed band."""
        return 100 * (math.sqrt(self.high_s / self.low_s) - 1)

    @property
    def speed(self) -> float:
        """Return units of work per second and GPU, predicted."""
        return self.case.sizes["units"] / self.seconds

    @property
    def measured_speed(self) -> float:
        return self.case.sizes["units"] / self.case.measured_s


@dataclass(frozen=True)
class Regret:
    """How much longer than the best the recommended run of a family takes."""

    family: str
    recommended: str
    pct: float
    memory_share: float
    """Measured."""


def score(rows: Sequence[Predicted]) -> dict[str, float]:
    """Return every figure of some judged rows; without outliers too."""
    errors = [one.error_pct for one in rows]
    found = spread(errors)
    kept = [one.error_pct for one in rows if not one.is_outlier] or errors
    pairs = [*ordered_pairs(rows)]
    recommended = list_regrets(rows)
    regrets = [one.pct for one in recommended]
    figures: dict[str, Any] = {
        "rows": len(rows),
        "mean": found.mean,
        "median": median(map(abs, errors)),
        "p95": found.p95,
        "largest": found.largest,
        "bias": found.bias,
        "outliers": sum(one.is_outlier for one in rows),
        "outliers_pct": 100 * mean(one.is_outlier for one in rows),
        "mean_without": spread(kept).mean,
        "p95_without": spread(kept).p95,
        "inside": 100 * mean(one.is_inside for one in rows),
        "half_width": mean(one.half_width_pct for one in rows),
        "pairs": len(pairs),
        "pairs_in_order": 100 * mean(pairs) if pairs else math.nan,
    }
    figures["half_width_per_error"] = figures["half_width"] / figures["mean"]
    if regrets:
        worst = spread(regrets)
        figures |= {
            "families": len(regrets),
            "regret": worst.mean,
            "regret_p95": worst.p95,
            "regret_worst": worst.largest,
            "recommended_above_gate": 100 * mean(one.memory_share > GATE for one in recommended),
        }
    return figures


def ordered_pairs(rows: Sequence[Predicted]) -> Iterator[bool]:
    """Yield for each pair of a family that is apart whether its order is right."""
    for family in _families(rows).values():
        for one, two in combinations(family, 2):
            measured = one.measured_speed / two.measured_speed
            if abs(measured - 1) > APART_PCT / 100 and abs(1 / measured - 1) > APART_PCT / 100:
                yield (one.speed > two.speed) == (measured > 1)


def list_regrets(rows: Sequence[Predicted]) -> list[Regret]:
    """Return the regret of every family with a choice; one that is predicted to fill the memory is not recommended."""
    found = []
    for name, family in _families(rows).items():
        allowed = [one for one in family if one.memory_share <= GATE]
        if len(family) < 2 or not allowed:
            continue
        chosen = max(allowed, key=lambda one: one.speed)
        best = max(one.measured_speed for one in family)
        pct = 100 * (best / chosen.measured_speed - 1)
        found.append(Regret(name, chosen.case.name, pct, chosen.case.memory_share))
    return found


def _families(rows: Sequence[Predicted]) -> Mapping[str, list[Predicted]]:
    found: dict[str, list[Predicted]] = defaultdict(list)
    for one in rows:
        found[one.case.family].append(one)
    return found


def find_outliers(cases: Sequence[Case]) -> set[str]:
    """Return the names of runs that are slower than everything around them, by what was measured only.

    That is by more than 10 % slower than the run of the same layout with half the micro-batch, and than the one with
    twice the micro-batch. Times between two micro-batches have no cause for a peak.
    """
    known: dict[tuple, float] = {}
    for case in cases:
        known[_place(case, case.sizes["micro_batch"])] = case.measured_s / case.sizes["units"]
    found = set()
    for case in cases:
        own = case.measured_s / case.sizes["units"]
        around = [
            known.get(_place(case, case.sizes["micro_batch"] * factor), math.inf) for factor in (0.5, 2.0)
        ]
        if own > SLOWER * max(around):
            found.add(case.name)
    return found


def _place(case: Case, micro_batch: float) -> tuple:
    layout = [case.sizes.get(name, 0) for name in ("tp", "dp", "pp", "zero_stage")]
    return case.family, *layout, micro_batch
