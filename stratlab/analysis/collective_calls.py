"""Turn the collectives of each rank into calls, and match the calls of all ranks, one rank at a time.

A collective ends on all ranks together, but each rank enters it when it is ready. So over the calls of one collective
the shortest duration is the transfer; a rank that was in it longer waited in its first (duration - shortest) ns for
the last one. Name, process group and number in order of issue identify the calls that belong together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratlab.analysis.lanes import POINT_TO_POINT, Lanes, find_collective, name_collective
from stratlab.traces.trace import Trace, Window
from stratlab_spec.trace_events import Times


class CallKey(NamedTuple):
    """The key by which calls are reported."""

    collective: str  # `all_reduce`, ...
    name: str  # as the trace has it, without arguments
    axis: str  # of the mesh, if the trace or the run names it, else empty


class CallKind(NamedTuple):
    """The key by which calls are matched."""

    key: CallKey
    members: str  # the ranks of the process group as text; empty = unknown


@dataclass(frozen=True)
class Calls:
    """Calls issued in any step, in that order, times in ns; `kind` indexes `kinds`. Empty arrays without any."""

    rank: int
    kinds: list[CallKind]
    kind: NDArray[np.int32]
    starts: Times
    ends: Times
    bytes: Times  # -1 = unknown

    def of(self, key: CallKey) -> NDArray[np.bool_]:
        """Return which calls are reported under this key."""
        return np.isin(self.kind, [i for i, kind in enumerate(self.kinds) if kind.key == key])


def find_calls(rank: int, trace: Trace, lanes: Lanes, windows: list[Window], axes: dict[str, int]) -> Calls:
    """Find the calls of a rank in the windows.

    Args:
        axes: of the run's mesh with their sizes; a single axis above 1 is the axis of calls without a group.
    """
    found = [lanes.issued_within(w.start_ns, w.end_ns) for w in windows]
    chosen = np.concatenate(found) if found else np.empty(0, np.int64)
    chosen = chosen[lanes.is_communication[chosen]]
    facts, entry = trace.communication, lanes.entry[chosen]
    known = entry >= 0
    nothing = np.full(len(chosen), -1, np.int64)
    collective, group, size = (
        np.where(known, values[entry], -1) if len(values) else nothing
        for values in (facts.collective, facts.group, facts.bytes)
    )
    # a record that started several kernels has the bytes of all of them together
    _, place, counts = np.unique(entry, return_inverse=True, return_counts=True)
    size = np.where(counts[place] == 1, size, -1)
    label = np.where(known, -1, lanes.label[chosen])
    keys = np.stack([lanes.name[chosen], collective, group, label], axis=1).reshape(-1, 4)
    rows, codes = np.unique(keys, axis=0, return_inverse=True)
    described = [_describe(trace, lanes.names[n], c, g, axes, label) for n, c, g, label in rows.tolist()]
    kinds = list(dict.fromkeys(described))
    kind = np.array([kinds.index(d) for d in described], np.int32)[codes.reshape(-1)]
    return Calls(rank, kinds, kind, lanes.starts[chosen], lanes.ends[chosen], size)


def _describe(
    trace: Trace, name: str, collective: int, group: int, axes: dict[str, int], label: int
) -> CallKind:
    facts = trace.communication
    wide = [axis for axis, size in axes.items() if size > 1]
    axis, group_name, members = wide[0] if len(wide) == 1 else "", "", ""
    best_name = name if label < 0 else trace.names[label]
    if collective >= 0 and find_collective(facts.collectives[collective]):
        best_name = facts.collectives[collective]
    if group >= 0:
        group_name, description, members = facts.groups[group]
        for entry in trace.distributed.get("pg_config") or []:
            if isinstance(entry, dict) and str(entry.get("pg_name")) == group_name:
                description = description or str(entry.get("pg_desc") or "")
                members = members or str(entry.get("ranks") or "")
        if description.startswith("mesh_"):
            axis = description.removeprefix("mesh_") or axis
    return CallKind(CallKey(name_collective(best_name), name.partition("(")[0], axis), members or group_name)


@dataclass
class Match:
    """The calls of one kind over the ranks seen so far."""

    shortest: Times  # ns, one per call
    longest: Times
    last: NDArray[np.int32]  # the rank with the shortest duration: it came last, if any rank was in it longer
    ranks: int = 1

    def count_last(self, rank: int) -> int:
        """Return in how many calls this rank came last."""
        return int(((self.last == rank) & (self.longest > self.shortest)).sum())


@dataclass
class Matching:
    """Match calls rank by rank; its size depends on the calls, not on the number of ranks.

    Attributes:
        one_group: a collective without a recorded group spans all ranks. With several process groups the calls of two
            ranks with the same number are not the same collective.
    """

    one_group: bool
    found: dict[CallKind, Match] = field(default_factory=dict)
    unmatched: set[CallKind] = field(default_factory=set)
    ranks: int = 0

    def apply(self, calls: Calls) -> None:
        """Add one rank. Point-to-point calls are not matched: a send has another partner each time."""
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
        """Return calls that match on at least two ranks; if the group is not recorded, on all."""
        return {
            kind: match
            for kind, match in self.found.items()
            if kind not in self.unmatched and match.ranks > 1 and (kind.members or match.ranks == self.ranks)
        }
