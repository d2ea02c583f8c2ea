"""A file's few counts become any depth, micro-batch and number of ranks, window by window and cause by cause.

In one window of a step each cause holds a number of bytes that is even in the layers of the rank, and in the rows
between two counted micro-batches and behind the last; the part that ranks share is even in 1 / ranks. The peak is the
fullest window of the fullest rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.shapes.pipeline_stages import split_layers

Sample = Mapping[str, Any]
"""layers, rows, ranks, rank, axes, windows {window: {cause: bytes}}: as the file has it."""


@dataclass(frozen=True)
class Peak:
    """What is held in the fullest window. `causes`: bytes; only what is held."""

    window: str
    rank: int
    causes: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.causes.values())


def find_peak(samples: Sequence[Sample], layers: int, rows: int, ranks: int, stages: int = 1) -> Peak:
    """Of the fullest rank that was counted. `stages`: of a pipeline, that one rank holds."""
    return max(_peaks(samples, layers, rows, ranks, stages), key=lambda peak: peak.total)


def find_window(
    samples: Sequence[Sample], window: str, like: Peak, layers: int, rows: int, ranks: int, stages: int = 1
) -> Peak:
    """What the rank of `like` holds in the fullest moment of one window; of no bytes where that was not counted."""
    peaks = _peaks(samples, layers, rows, ranks, stages)
    mine = (peak for peak in peaks if (peak.window, peak.rank) == (window, like.rank))
    return next(mine, Peak(window, like.rank, {}))


def _peaks(samples: Sequence[Sample], layers: int, rows: int, ranks: int, stages: int) -> Iterator[Peak]:
    for rank in dict.fromkeys(sample["rank"] for sample in samples):
        mine = [
            {**sample, "layers": _own_layers(sample, sample["layers"], stages)}
            for sample in samples
            if sample["rank"] == rank
        ]
        own = _own_layers(mine[0], layers, stages)
        for window in dict.fromkeys(name for sample in mine for name in sample["windows"]):
            names = dict.fromkeys(name for sample in mine for name in sample["windows"].get(window, ()))
            sizes = {name: round(_scale(mine, window, name, own, rows, ranks)) for name in names}
            yield Peak(window, rank, _settle(sizes))


def _own_layers(sample: Sample, layers: int, stages: int) -> int:
    """Layers that the sample's rank holds of so many: of a pipeline the first or the last stages (split_layers)."""
    pp = sample["axes"].get("pp", 1)
    parts = split_layers(layers, pp * stages)
    return sum(map(len, parts[0 if sample["rank"] == 0 else pp - 1 :: pp]))


def _settle(sizes: Mapping[str, int]) -> dict[str, int]:
    """What is held, with the sum as it is: the fullest moment of a window is not the same one at every depth, so that a
    cause may end below nothing, and then the largest one above what it is."""
    owed = sum(size for size in sizes.values() if size < 0)
    held = {name: size for name, size in sizes.items() if size > 0}
    for name in sorted(held, key=lambda name: -held[name]):
        paid = max(-held[name], owed)
        held[name], owed = held[name] + paid, owed - paid
    return {name: size for name, size in held.items() if size}


def _scale(samples: Sequence[Sample], window: str, cause: str, layers: int, rows: int, ranks: int) -> float:
    def at(number: int) -> dict[int, float]:
        """Rows -> bytes, at this depth."""
        found: dict[int, list[tuple[float, float]]] = {}
        for sample in samples:
            if sample["ranks"] == number:
                size = sample["windows"].get(window, {}).get(cause, 0)
                found.setdefault(sample["rows"], []).append((sample["layers"], size))
        return {counted: _line(sorted(points), layers) for counted, points in sorted(found.items())}

    base = samples[0]["ranks"]
    here = at(base)
    value = _at_rows(here, rows)
    other = next((sample["ranks"] for sample in samples if sample["ranks"] != base), base)
    if base in (other, ranks):
        return value
    there = at(other)
    counted = next(iter(there))  # the micro-batch with which the other number of ranks was counted
    return value + (there[counted] - here[counted]) * (1 / ranks - 1 / base) / (1 / other - 1 / base)


def _at_rows(sizes: Mapping[int, float], rows: int) -> float:
    points = [(float(number), size) for number, size in sizes.items()]
    below = [point for point in points if point[0] <= rows] or points[:1]
    above = [point for point in points if point[0] > below[-1][0]]
    return _line([below[-1], above[0]] if above else points[-2:], rows)


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    """The straight line through the first and the last of them; one point is the same everywhere."""
    (x, y), (x_end, y_end) = points[0], points[-1]
    return y if x == x_end else y + (y_end - y) * (at - x) / (x_end - x)
