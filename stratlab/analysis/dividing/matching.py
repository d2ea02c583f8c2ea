"""Finds over all ranks how long each collective call had to last, one rank at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stratlab.analysis.dividing.calls import CallKind, Calls
from stratlab.analysis.dividing.collective_names import POINT_TO_POINT
from stratlab.traces.intervals import Times


@dataclass
class Match:
    """The calls of one kind over the ranks seen so far."""

    shortest: Times  # ns, one per call
    longest: Times
    last: NDArray[np.int32]  # the rank with the shortest duration: it came last, if any rank was in it longer
    ranks: int = 1

    def count_last(self, rank: int) -> int:
        """In how many calls this rank came last."""
        return int(((self.last == rank) & (self.longest > self.shortest)).sum())


@dataclass
class Matching:
    """Grows by ranks; its size depends on the calls, not on the number of ranks.

    Attributes:
        one_group: a collective without a told group spans all ranks. With several process groups the calls of two
            ranks with the same number are not the same collective.
    """

    one_group: bool
    found: dict[CallKind, Match] = field(default_factory=dict)
    unmatched: set[CallKind] = field(default_factory=set)
    ranks: int = 0

    def apply(self, calls: Calls) -> None:
        """Adds one rank. Point-to-point calls are not matched: a send has another partner each time."""
        self.ranks += 1
        for index, kind in enumerate(calls.kinds):
            if kind.key.collective == POINT_TO_POINT or not (kind.members or self.one_group):
                continue
            mine = calls.kind == index
            durations = (calls.ends - calls.starts)[mine]
            match = self.found.get(kind)
            if match is None:
                self.found[kind] = Match(durations, durations, np.full(len(durations), calls.rank, np.int32))
            elif len(match.shortest) != len(durations):
                self.unmatched.add(kind)
            else:
                match.last = np.where(durations < match.shortest, calls.rank, match.last).astype(np.int32)
                match.shortest = np.minimum(durations, match.shortest)
                match.longest = np.maximum(durations, match.longest)
                match.ranks += 1

    def take(self) -> Mapping[CallKind, Match]:
        """What matched on at least two ranks; where the group is not told, on all."""
        return {
            kind: match
            for kind, match in self.found.items()
            if kind not in self.unmatched and match.ranks > 1 and (kind.members or match.ranks == self.ranks)
        }
