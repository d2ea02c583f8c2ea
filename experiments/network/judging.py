"""Which strategy wins at which rate of the network: predicted steps with bands against measured ones.

predicted: strategy -> rate -> ms, band  ┐
measured:  strategy -> rate -> medians   ┴─▶ cells (decided, right) and the rate at which the winner changes
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

MOST_FLIP_FACTOR = 1.5
LEAST_DECIDED = 0.5


class Foretold(NamedTuple):
    """A predicted step with the band that holds 90 %."""

    ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class Cell:
    """All strategies at one rate."""

    rate_mbit: float
    predicted: Mapping[str, Foretold]
    measured: Mapping[str, Sequence[float]]
    """Strategy -> milliseconds of a step, a median per repeat."""

    @property
    def foretold(self) -> str:
        return min(self.predicted, key=lambda name: self.predicted[name].ms)

    @property
    def winner(self) -> str:
        return min(self.measured, key=lambda name: median(self.measured[name]))

    @property
    def decided(self) -> bool:
        """Return whether the band of the fastest one ends before all others begin."""
        first = self.predicted[self.foretold]
        return all(
            one.low_ms > first.high_ms for name, one in self.predicted.items() if name != self.foretold
        )

    @property
    def inside(self) -> list[str]:
        """Return the strategies whose measured median lies in the band."""
        return [
            name
            for name, one in self.predicted.items()
            if one.low_ms <= median(self.measured[name]) <= one.high_ms
        ]


class Flip(NamedTuple):
    """The winner changes: `slow` is faster below the rate, `fast` above it."""

    slow: str
    fast: str
    rate_mbit: float


def find_flip(
    step_ms: Callable[[str, float], float], strategies: Sequence[str], rates: Sequence[float]
) -> Flip | None:
    """Return where the winner at the lowest rate loses to that at the highest one, by bisection; None if it does not.

    Args:
        step_ms: of a strategy at a rate, as predicted, or between measured ones.
    """
    low, high = min(rates), max(rates)
    slow, fast = (min(strategies, key=lambda name, rate=rate: step_ms(name, rate)) for rate in (low, high))
    if slow == fast:
        return None
    for _ in range(50):
        middle = math.sqrt(low * high)
        if step_ms(slow, middle) < step_ms(fast, middle):
            low = middle
        else:
            high = middle
    return Flip(slow, fast, low)


def interpolate(points: Mapping[float, float], rate: float) -> float:
    """Return a step between measured rates, in the logarithms of both."""
    below = max((known for known in points if known <= rate), default=min(points))
    above = min((known for known in points if known >= rate), default=max(points))
    if below == above:
        return points[below]
    part = math.log(rate / below) / math.log(above / below)
    return math.exp((1 - part) * math.log(points[below]) + part * math.log(points[above]))


@dataclass(frozen=True)
class Verdict:
    """What the experiment shows."""

    cells: Sequence[Cell]
    predicted_flip: Flip | None
    measured_flip: Flip | None

    @property
    def flip_factor(self) -> float | None:
        """Return the ratio of the rates at which the same two strategies change places; None if they are others."""
        one, other = self.predicted_flip, self.measured_flip
        if one is None or other is None or one[:2] != other[:2]:
            return None
        return max(one.rate_mbit / other.rate_mbit, other.rate_mbit / one.rate_mbit)

    def list_misses(self) -> list[str]:
        """Return what is not as it must be."""
        decided = [cell for cell in self.cells if cell.decided]
        found = [
            f"{cell.rate_mbit:g} Mbit/s: {cell.foretold} was foretold, {cell.winner} won"
            for cell in decided
            if cell.foretold != cell.winner
        ]
        if len(decided) < LEAST_DECIDED * len(self.cells):
            found.append(f"{len(decided)} of {len(self.cells)} cells decided")
        factor = self.flip_factor
        if factor is None or factor > MOST_FLIP_FACTOR:
            found.append(f"flip: predicted {self.predicted_flip}, measured {self.measured_flip}")
        return found


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a result.json."""
    return [
        Cell(
            cell["mbit_per_s"],
            {name: Foretold(*one["predicted_ms"]) for name, one in cell["steps"].items()},
            {name: one["measured_ms"] for name, one in cell["steps"].items()},
        )
        for cell in json.loads(path.read_text())["cells"]
    ]


def judge(cells: Sequence[Cell], predicted_ms: Callable[[str, float], float]) -> Verdict:
    """Return the verdict.

    Args:
        predicted_ms: a step at any rate.
    """
    strategies, rates = list(cells[0].predicted), [cell.rate_mbit for cell in cells]
    points = {name: {cell.rate_mbit: median(cell.measured[name]) for cell in cells} for name in strategies}
    measured = find_flip(lambda name, rate: interpolate(points[name], rate), strategies, rates)
    return Verdict(cells, find_flip(predicted_ms, strategies, rates), measured)
