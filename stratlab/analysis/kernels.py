"""Durations on one rank: GPU events by name and by length, copies by kind, collectives.

Many short kernels mean that launching takes longer than computing. The bandwidth of copies is all bytes over all
time, so a long copy counts for more than a short one. Of communication: its time, its exposed time, and each rank's
waiting for the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratlab.analysis.collective_calls import CallKind, Calls, Match
from stratlab.analysis.lanes import Lanes
from stratlab.analysis.time_breakdown import Partition
from stratlab.traces.kineto_events import COPY_CATEGORIES
from stratlab.traces.trace import Trace, find_steps
from stratlab_spec.trace_events import Times, find_distinct

TYPES = ("compute", "comm", "copy")
SHORT_US = 10.0
BINS_PER_DECADE, FIRST_DECADE, LAST_DECADE = 20, -1, 7
# 0.1 us to 10 s; others count in the first or the last bin. A whole decade, so 10 us too, is an edge.
EDGES_US = [
    float(f"{10 ** (FIRST_DECADE + i / BINS_PER_DECADE):.6g}")
    for i in range((LAST_DECADE - FIRST_DECADE) * BINS_PER_DECADE + 1)
]


@dataclass(frozen=True)
class KernelRow:
    """All GPU events of one name on one rank, over the whole trace. `type`: one of TYPES; `pct` of the summed time of
    all GPU events of the rank."""

    rank: int
    name: str
    type: str
    count: int
    sum_ms: float
    mean_us: float
    p50_us: float
    p95_us: float
    max_us: float
    pct: float


@dataclass(frozen=True)
class Durations:
    """The number of GPU events of each type and length, counted between the edges, so that ranks can be added.

    `short`: kernels (not copies) below SHORT_US. `in_steps`: kernels that the host launched within a step.
    """

    edges_us: list[float]
    compute: list[int]
    comm: list[int]
    copy: list[int]
    short: int
    in_steps: int

    @property
    def kernels(self) -> list[int]:
        """Return the counts of all kernels, without copies."""
        return [a + b for a, b in zip(self.compute, self.comm, strict=True)]


def build_kernels(rank: int, trace: Trace, lanes: Lanes) -> list[KernelRow]:
    """Return one row per name and type, those with most time first; none on CPU traces.

    Sums, means and maxima equal HTA's `get_gpu_kernel_breakdown`, percentiles numpy's.
    """
    if lanes.source == "cpu" or not len(lanes.starts):
        return []
    types = _find_types(lanes)
    durations = lanes.ends - lanes.starts
    key = lanes.name.astype(np.int64) * len(TYPES) + types
    order = np.lexsort((durations, key))
    key, durations = key[order], durations[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    counts = np.diff(np.append(first, len(key)))
    sums = np.add.reduceat(durations, first)
    p50, p95 = (_quantile(durations, first, counts, share) for share in (0.5, 0.95))
    total = int(sums.sum())
    rows = [
        KernelRow(
            rank=rank,
            name=trace.names[int(key[at]) // len(TYPES)],
            type=TYPES[int(key[at]) % len(TYPES)],
            count=int(counts[i]),
            sum_ms=int(sums[i]) / 1e6,
            mean_us=int(sums[i]) / int(counts[i]) / 1e3,
            p50_us=float(p50[i]) / 1e3,
            p95_us=float(p95[i]) / 1e3,
            max_us=int(durations[at + counts[i] - 1]) / 1e3,
            pct=100 * int(sums[i]) / total if total else 0.0,
        )
        for i, at in enumerate(first.tolist())
    ]
    return sorted(rows, key=lambda row: (-row.sum_ms, row.name))


def build_durations(trace: Trace, lanes: Lanes) -> Durations:
    """Return the histogram of one rank; empty on CPU traces."""
    if lanes.source == "cpu":
        nothing = [0] * (len(EDGES_US) - 1)
        return Durations(EDGES_US, nothing, nothing, nothing, 0, 0)
    durations_us = (lanes.ends - lanes.starts) / 1e3
    bins = np.clip(np.searchsorted(EDGES_US, durations_us, side="right") - 1, 0, len(EDGES_US) - 2)
    types = _find_types(lanes)
    compute, comm, copy = (
        np.bincount(bins[types == code], minlength=len(EDGES_US) - 1).tolist() for code in range(len(TYPES))
    )
    short = int((durations_us[~lanes.is_copy] < SHORT_US).sum())
    issued = [lanes.issued_within(window.start_ns, window.end_ns) for window in find_steps(trace)[1]]
    in_steps = sum(int((~lanes.is_copy[events]).sum()) for events in issued)
    return Durations(EDGES_US, compute, comm, copy, short, in_steps)


def sum_durations(durations: Sequence[Durations]) -> Durations:
    """Return the sum of several ranks' durations."""
    counts: dict[str, Any] = {
        name: [sum(column) for column in zip(*(getattr(each, name) for each in durations), strict=True)]
        for name in TYPES
    }
    counts |= {name: sum(getattr(each, name) for each in durations) for name in ("short", "in_steps")}
    return Durations(EDGES_US, **counts)


def find_median(counts: NDArray[np.int64] | Sequence[int]) -> float | None:
    """Return the median of such counts, us, to the width of a bin (12 %); None without any."""
    reached = np.cumsum(counts)
    if not len(reached) or not reached[-1]:
        return None
    half = reached[-1] / 2
    at = int(np.searchsorted(reached, half))
    before = float(reached[at - 1]) if at else 0.0
    share = (half - before) / (float(reached[at]) - before)
    return EDGES_US[at] * (EDGES_US[at + 1] / EDGES_US[at]) ** share


def find_short_share(counts: NDArray[np.int64] | Sequence[int]) -> float | None:
    """Return the percentage of such counts below SHORT_US; None without any."""
    total = int(np.sum(counts))
    return 100 * int(np.sum(counts[: EDGES_US.index(SHORT_US)])) / total if total else None


def _find_types(lanes: Lanes) -> NDArray[np.int64]:
    return np.where(lanes.is_communication, 1, np.where(lanes.is_copy, 2, 0)).astype(np.int64)


def _quantile(durations: Times, first: Times, counts: Times, share: float) -> NDArray[np.float64]:
    """Return the quantile of each group of sorted durations, interpolated between neighbours."""
    at = (counts - 1) * share
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, counts - 1)
    below, above = durations[first + low], durations[first + high]
    return np.asarray(below + (at - low) * (above - below))


# CUDA's and ROCm's names; the first that matches
KINDS = (
    ("HtoD", re.compile(r"HtoD|HostToDevice")),
    ("DtoH", re.compile(r"DtoH|DeviceToHost")),
    ("DtoD", re.compile(r"DtoD|DeviceToDevice")),
    ("PtoP", re.compile(r"PtoP|PeerToPeer")),
    ("Memset", re.compile(r"memset|fillbuffer", re.IGNORECASE)),
)


@dataclass(frozen=True)
class CopyRow:
    """All copies of one kind on one rank, over the whole trace.

    If the trace lacks the size of a copy, `bytes` and `gbps` (1e9 bytes per second) have the value None.
    """

    rank: int
    kind: str
    count: int
    bytes: int | None
    total_ms: float
    gbps: float | None


def name_copy(name: str) -> str:
    """Return `HtoD` for `Memcpy HtoD (Pinned -> Device)`; `other` for unknown copies."""
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "other")


def build_copies(rank: int, trace: Trace) -> list[CopyRow]:
    """Return one row per kind, those with most time first; none on CPU traces."""
    copies = np.flatnonzero(trace.in_category(COPY_CATEGORIES)[trace.gpu])
    names = trace.name[trace.gpu[copies]]
    kind_of = {code: name_copy(trace.names[code]) for code in find_distinct(names)}
    durations = (trace.end - trace.ts)[trace.gpu[copies]]
    rows = []
    for kind in sorted(set(kind_of.values())):
        mine = np.isin(names, [code for code, name in kind_of.items() if name == kind])
        sizes, total_ns = trace.bytes[copies[mine]], int(durations[mine].sum())
        size = int(sizes.sum()) if (sizes >= 0).all() else None
        rate = size / total_ns if size is not None and total_ns else None
        rows.append(CopyRow(rank, kind, int(mine.sum()), size, total_ns / 1e6, rate))
    return sorted(rows, key=lambda row: -row.total_ms)


@dataclass(frozen=True)
class CollectiveRow:
    """One collective on one rank over all analysed steps; all times in ms.

    None stands for unknown `bytes`, and, if the calls of ranks cannot be matched, for waiting and `arrived_last`
    (calls in which this rank came last).
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
    """Return one row per name and axis of one rank."""
    rows = []
    durations = calls.ends - calls.starts
    for key in dict.fromkeys(kind.key for kind in calls.kinds):
        mine, sizes = calls.of(key), calls.bytes[calls.of(key)]
        kinds = [(i, matches.get(kind)) for i, kind in enumerate(calls.kinds) if kind.key == key]
        known = [(durations[calls.kind == i], match) for i, match in kinds if match]
        matched = len(known) == len(kinds)
        wait_ns = sum(int((ns - match.shortest).sum()) for ns, match in known)
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
                wait_ms=wait_ns / 1e6 if matched else None,
                exposed_wait_ms=int(partition.exposed_wait[key].sum()) / 1e6 if matched else None,
                arrived_last=sum(match.count_last(calls.rank) for _, match in known) if matched else None,
            )
        )
    return rows


def sort_collectives(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Return the longest first, all ranks of one together."""
    longest: dict[tuple[str, str | None], float] = {}
    for row in rows:
        key = (row.name, row.axis)
        longest[key] = max(longest.get(key, 0.0), row.total_ms)
    return sorted(rows, key=lambda r: (-longest[r.name, r.axis], r.name, r.axis or "", r.rank))
