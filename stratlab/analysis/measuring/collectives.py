"""Communication by name: how much of it, how much of it is exposed, and how long each rank waited for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stratlab.analysis.dividing.calls import CallKind, Calls
from stratlab.analysis.dividing.matching import Match
from stratlab.analysis.dividing.partition import Partition


@dataclass(frozen=True)
class CollectiveRow:
    """One collective on one rank over all analysed steps; all times in ms.

    `bytes` is None where the trace does not tell; waiting and `arrived_last` (calls in which this rank came last)
    are None where the calls of ranks cannot be matched.
    """

    rank: int
    name: str
    collective: str
    axis: str | None
    count: int
    bytes: int | None
    total_ms: float
    exposed_ms: float
    wait_ms: float | None
    exposed_wait_ms: float | None
    arrived_last: int | None


def build_collectives(
    calls: Calls, partition: Partition, matches: Mapping[CallKind, Match]
) -> list[CollectiveRow]:
    """Of one rank, one row per name and axis."""
    rows = []
    durations = calls.ends - calls.starts
    for key in dict.fromkeys(kind.key for kind in calls.kinds):
        mine = calls.of(key)
        kinds = [i for i, kind in enumerate(calls.kinds) if kind.key == key]
        matched = all(calls.kinds[i] in matches for i in kinds)
        waits = [
            int((durations[calls.kind == i] - matches[calls.kinds[i]].shortest).sum())
            for i in kinds
            if matched
        ]
        came_last = [matches[calls.kinds[i]].count_last(calls.rank) for i in kinds if matched]
        sizes = calls.bytes[mine]
        rows.append(
            CollectiveRow(
                rank=calls.rank,
                name=key.name,
                collective=key.collective,
                axis=key.axis or None,
                count=int(mine.sum()),
                bytes=int(sizes.sum()) if np.all(sizes >= 0) else None,
                total_ms=int(durations[mine].sum()) / 1e6,
                exposed_ms=int(partition.exposed[key].sum()) / 1e6,
                wait_ms=sum(waits) / 1e6 if matched else None,
                exposed_wait_ms=int(partition.exposed_wait[key].sum()) / 1e6 if matched else None,
                arrived_last=sum(came_last) if matched else None,
            )
        )
    return rows


def sort_collectives(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """The longest first, all ranks of one together."""
    longest: dict[tuple[str, str | None], float] = {}
    for row in rows:
        key = (row.name, row.axis)
        longest[key] = max(longest.get(key, 0.0), row.total_ms)
    return sorted(rows, key=lambda r: (-longest[r.name, r.axis], r.name, r.axis or "", r.rank))
