"""Communication by name, and how long each rank waited in it for the others.

A collective ends on all ranks together but each rank enters it when it is ready. So over the calls of one
collective the shortest duration is the transfer, what is above it is waiting, and the rank with the shortest
one came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stratlab.analysis.lanes import Lanes
from stratlab.traces.intervals import Times
from stratlab.traces.labels import Window


@dataclass(frozen=True)
class Calls:
    """The calls of one collective on one rank, in the order in which they were issued."""

    rank: int
    name: str
    durations_us: Times


@dataclass(frozen=True)
class CollectiveRow:
    """One collective on one rank over all analysed steps.

    `wait_ms` and `arrived_last` (calls in which this rank came last) are None where calls cannot be matched.
    """

    rank: int
    name: str
    count: int
    total_ms: float
    wait_ms: float | None
    arrived_last: int | None


def find_calls(rank: int, lanes: Lanes, windows: list[Window]) -> list[Calls]:
    """The collectives issued in any of the steps."""
    inside = np.zeros(len(lanes.issued), bool)
    for window in windows:
        inside |= (lanes.issued >= window.start_us) & (lanes.issued < window.end_us)
    chosen = np.flatnonzero(inside & lanes.is_communication)
    chosen = chosen[np.argsort(lanes.issued[chosen], kind="stable")]
    names = np.array([lanes.names[i].partition("(")[0] for i in lanes.name[chosen]], object)
    durations = (lanes.ends - lanes.starts)[chosen]
    return [Calls(rank, name, durations[names == name]) for name in sorted(set(names))]


def build_collectives(calls: Sequence[Calls], one_group: bool) -> list[CollectiveRow]:
    """One row per collective and rank, the longest first.

    Args:
        calls: of all ranks.
        one_group: every collective spans all ranks. With several process groups the calls of two ranks with
            the same
            number are not the same collective, and no waiting is given.
    """
    rows = []
    ranks = {c.rank for c in calls}
    for name in {c.name for c in calls}:
        peers = sorted((c for c in calls if c.name == name), key=lambda c: c.rank)
        counts = {len(c.durations_us) for c in peers}
        matched = one_group and len(peers) == len(ranks) > 1 and len(counts) == 1
        shortest = np.min([c.durations_us for c in peers], axis=0) if matched else None
        last = np.argmin([c.durations_us for c in peers], axis=0) if matched else None
        for i, c in enumerate(peers):
            total_ms = float(c.durations_us.sum()) / 1000
            wait_ms = None if shortest is None else float((c.durations_us - shortest).sum()) / 1000
            arrived_last = None if last is None else int((last == i).sum())
            rows.append(CollectiveRow(c.rank, name, len(c.durations_us), total_ms, wait_ms, arrived_last))
    longest = {name: max(r.total_ms for r in rows if r.name == name) for name in {r.name for r in rows}}
    return sorted(rows, key=lambda r: (-longest[r.name], r.name, r.rank))
