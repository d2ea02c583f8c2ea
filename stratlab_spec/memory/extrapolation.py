"""Extrapolate the counts of one strategy to other depths, micro-batches and numbers of ranks.

In one window of a step, the bytes of each cause are linear in the layers of the rank. Between two counted
micro-batches, and above the largest, they are also linear in the rows. The part that ranks share is linear in 1 /
ranks. The peak is the fullest window of the fullest rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from stratlab_spec.models.decoder import split_layers

HOST = "host"
"""Offloaded memory, as if it were a window of the step."""
Number = Annotated[int, Field(ge=0, le=1 << 53)]
Positive = Annotated[int, Field(ge=1, le=1 << 30)]


@dataclass(frozen=True)
class Peak:
    """The bytes of one rank in the fullest moment of a window."""

    window: str
    rank: int
    causes: Mapping[str, int]
    """Bytes; only causes with memory."""

    @property
    def total(self) -> int:
        return sum(self.causes.values())


class CountedPart(BaseModel):
    """A part of a file, with strict types."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Sample(CountedPart):
    """One count: bytes by window and cause, and bytes in host memory by cause (offloaded)."""

    layers: Number
    rows: Positive
    ranks: Positive
    rank: Number
    axes: dict[str, Positive]
    windows: Annotated[dict[str, dict[str, Number]], Field(min_length=1)]
    host: dict[str, Number] = {}

    def causes(self, window: str) -> Mapping[str, int]:
        """Return the bytes by cause of a window; empty if it was not seen."""
        return self.host if window == HOST else self.windows.get(window, {})

    def own_layers(self, layers: int, stages: int) -> int:
        """Return layers that the rank holds of so many: of a pipeline the first stages, or the last ones of the other
        rank.

        Args:
            stages: that one rank holds.
        """
        pp = self.axes.get("pp", 1)
        parts = split_layers(layers, pp * stages)
        return sum(map(len, parts[0 if self.rank == 0 else pp - 1 :: pp]))


def extrapolate(
    counts: Sequence[tuple[Sample, int]], window: str, layers: int, rows: int, ranks: int
) -> Peak:
    """Return the bytes of one rank in the fullest moment of one window.

    Args:
        counts: of the rank, each with the layers that it holds there.
        window: HOST = its host memory.
    """
    causes = dict.fromkeys(cause for sample, _ in counts for cause in sample.causes(window))
    sizes = {
        cause: round(
            _scale([(*each, each[0].causes(window).get(cause, 0)) for each in counts], layers, rows, ranks)
        )
        for cause in causes
    }
    return Peak(window, counts[0][0].rank, settle(sizes))


def settle(sizes: Mapping[str, int]) -> dict[str, int]:
    """Remove negative sizes and keep the sum.

    The fullest moment of a window differs between depths, or between two simulated passes, so that a cause may become
    negative and the largest one too large.
    """
    owed = sum(size for size in sizes.values() if size < 0)
    held = {name: size for name, size in sizes.items() if size > 0}
    for name in sorted(held, key=lambda name: -held[name]):
        paid = max(-held[name], owed)
        held[name], owed = held[name] + paid, owed - paid
    return {name: size for name, size in held.items() if size}


def _scale(points: Sequence[tuple[Sample, int, int]], layers: int, rows: int, ranks: int) -> float:
    """Return bytes of one cause in one window. `points`: (count, layers of its rank, bytes), of one rank."""

    def by_rows(number: int) -> dict[int, float]:
        """Return rows -> bytes on this number of ranks, at this depth."""
        found: dict[int, list[tuple[float, float]]] = {}
        for sample, depth, size in points:
            if sample.ranks == number:
                found.setdefault(sample.rows, []).append((depth, size))
        return {counted: _line(sorted(pairs), layers) for counted, pairs in sorted(found.items())}

    base = points[0][0].ranks
    here = by_rows(base)
    value = _at_rows(here, rows)
    other = next((sample.ranks for sample, _, _ in points if sample.ranks != base), base)
    if base in (other, ranks):
        return value
    there = by_rows(other)
    counted = next(iter(there))  # the micro-batch with which the other number of ranks was counted
    return value + (there[counted] - here[counted]) * (1 / ranks - 1 / base) / (1 / other - 1 / base)


def _at_rows(sizes: Mapping[int, float], rows: int) -> float:
    pairs = [(float(number), size) for number, size in sizes.items()]
    below = [pair for pair in pairs if pair[0] <= rows] or pairs[:1]
    above = [pair for pair in pairs if pair[0] > below[-1][0]]
    return _line([below[-1], above[0]] if above else pairs[-2:], rows)


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the straight line through the first and the last of them; one point is the same everywhere."""
    (x, y), (x_end, y_end) = points[0], points[-1]
    return y if x == x_end else y + (y_end - y) * (at - x) / (x_end - x)
