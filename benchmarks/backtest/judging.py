"""Errors of predictions, and the bars that they are held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean


@dataclass(frozen=True)
class Row:
    """One run: GiB predicted and measured. `group`: what it is summed up with."""

    case: str
    predicted_gib: float
    measured_gib: float
    group: str

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_gib / self.measured_gib - 1)


@dataclass(frozen=True)
class Bar:
    """What was asked for, what was found, of how many rows. `sign`: "<=" or ">=", on which side it is met."""

    what: str
    found: float
    sign: str
    bar: float
    unit: str
    rows: int

    @property
    def met(self) -> bool:
        return self.found <= self.bar if self.sign == "<=" else self.found >= self.bar


@dataclass(frozen=True)
class Spread:
    """Of the errors of some rows, in percent: without their signs, but for the bias."""

    rows: int
    mean: float
    p95: float
    largest: float
    bias: float


def spread(errors: Sequence[float]) -> Spread:
    """The p95 is the smallest error that 95 of 100 rows do not exceed."""
    sizes = sorted(abs(error) for error in errors)
    p95 = sizes[math.ceil(0.95 * len(sizes)) - 1]
    return Spread(len(sizes), mean(sizes), p95, sizes[-1], mean(errors))
