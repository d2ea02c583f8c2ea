"""A file's few counts become any depth, micro-batch and number of ranks, window by window and cause by cause.

In one window of a step each cause holds a number of bytes that is even in the layers of the rank, and in the rows
between two counted micro-batches and behind the last; the part that ranks share is even in 1 / ranks. The peak is the
fullest window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

Causes = dict[str, float]
HOST = "host"
"""What is offloaded, as if it were a window of the step."""


@dataclass(frozen=True)
class Sample:
    """One count: bytes by window and cause."""

    layers: int
    rows: int
    ranks: int
    rank: int
    windows: Mapping[str, Mapping[str, int]]
    host: Mapping[str, int] = field(default_factory=dict)
    """Bytes in host memory by cause: what is offloaded."""
    pp: int = 1
    """Ranks that share the layers of a pipeline."""
    stages: int = 1
    """Of a pipeline, that one rank holds."""

    def own_layers(self, layers: int) -> int:
        """Layers that the rank holds of so many: the first stage is rank 0's, the last one that of the other rank that
        was counted, and layers that are left over go to the first stages (stratlab_spec.models.decoder)."""
        base, over = divmod(layers, self.pp * self.stages)
        first = 0 if self.rank == 0 else self.pp - 1
        return sum(base + (stage < over) for stage in range(first, self.pp * self.stages, self.pp))


@dataclass(frozen=True)
class Peak:
    """The fullest window of one rank."""

    window: str
    rank: int
    causes: Mapping[str, int]
    """Bytes; only what is held."""

    @property
    def total(self) -> int:
        return sum(self.causes.values())


def scale(samples: Sequence[Sample], layers: int, rows: int, ranks: int) -> Peak:
    """The peak of the fullest rank that was counted."""
    peaks = []
    for rank in dict.fromkeys(sample.rank for sample in samples):
        mine = [sample for sample in samples if sample.rank == rank]
        names = dict.fromkeys(name for sample in mine for name in sample.windows)
        peaks += [_scale_window(mine, name, rank, layers, rows, ranks) for name in names]
    return max(peaks, key=lambda peak: peak.total)


def scale_host(samples: Sequence[Sample], rank: int, layers: int, rows: int, ranks: int) -> Peak:
    """What a rank that was counted keeps in host memory."""
    apart = [replace(one, windows={HOST: one.host}) for one in samples if one.rank == rank]
    return _scale_window(apart, HOST, rank, layers, rows, ranks)


def _scale_window(
    samples: Sequence[Sample], window: str, rank: int, layers: int, rows: int, ranks: int
) -> Peak:
    causes = dict.fromkeys(cause for sample in samples for cause in sample.windows.get(window, {}))
    found = {}
    for cause in causes:
        points = [(sample, float(sample.windows.get(window, {}).get(cause, 0))) for sample in samples]
        found[cause] = round(_scale_cause(points, layers, rows, ranks))
    return Peak(window, rank, _settle(found))


def _settle(sizes: Mapping[str, int]) -> dict[str, int]:
    """What is held, with the sum as it is: the fullest moment of a window is not the same one at every depth, so that a
    cause may end below nothing, and then the largest one above what it is."""
    owed = sum(size for size in sizes.values() if size < 0)
    held = {name: size for name, size in sizes.items() if size > 0}
    for name in sorted(held, key=lambda name: -held[name]):
        paid = max(-held[name], owed)
        held[name], owed = held[name] + paid, owed - paid
    return {name: size for name, size in held.items() if size}


def _scale_cause(points: Sequence[tuple[Sample, float]], layers: int, rows: int, ranks: int) -> float:
    base, layers = points[0][0].ranks, points[0][0].own_layers(layers)
    value = _at_rows(_by_rows(points, base, layers), rows)
    others = [sample.ranks for sample, _ in points if sample.ranks != base]
    if not others or ranks == base:
        return value
    there = _by_rows(points, others[0], layers)
    counted = next(iter(there))  # the micro-batch with which the other number of ranks was counted
    change = there[counted] - _by_rows(points, base, layers)[counted]
    return value + change * (1 / ranks - 1 / base) / (1 / others[0] - 1 / base)


def _by_rows(points: Sequence[tuple[Sample, float]], ranks: int, layers: int) -> dict[int, float]:
    """Rows -> bytes with so many layers of its own."""
    found: dict[int, list[tuple[float, float]]] = {}
    for sample, size in points:
        if sample.ranks == ranks:
            found.setdefault(sample.rows, []).append((sample.own_layers(sample.layers), size))
    return {rows: _line(sorted(pairs), layers) for rows, pairs in sorted(found.items())}


def _at_rows(by_rows: Mapping[int, float], rows: int) -> float:
    pairs = [(float(number), size) for number, size in by_rows.items()]
    below = [pair for pair in pairs if pair[0] <= rows] or pairs[:1]
    above = [pair for pair in pairs if pair[0] > below[-1][0]]
    if not above:
        return _line(pairs[-2:], rows)
    return _line([below[-1], above[0]], rows)


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    """The straight line through the first and the last of them; one point is the same everywhere."""
    (x, y), (x_end, y_end) = points[0], points[-1]
    return y if x == x_end else y + (y_end - y) * (at - x) / (x_end - x)
