"""Which host event launched each GPU event, and in which collective it did so.

A launch is any host event with the GPU event's correlation id, whatever device's runtime it belongs to. A collective is
known by what the GPU event says of itself, else by the record (RECORD), label or operator of torch around its launch:
NCCL carries out an all-to-all with a kernel named SendRecv.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stratlab.analysis.dividing.collective_names import (
    COMMUNICATION_LABEL,
    COMMUNICATION_OPERATOR,
    is_collective,
)
from stratlab.traces.events import LAUNCH_CATEGORY, OPERATOR_CATEGORIES, RECORD
from stratlab.traces.intervals import Times
from stratlab.traces.trace import BEFORE, LABEL_CATEGORIES, UNTOLD, Mask, Trace

DEEPEST = 8  # labels around one launch that are looked at, from the innermost


@dataclass(frozen=True)
class Launches:
    """One entry per event of `trace.gpu`. `event` is the trace's event, -1 = none in the trace; then `start` and `end`
    are BEFORE for what was in flight when the recording began, else UNTOLD."""

    event: Times
    start: Times
    end: Times


def find_launches(trace: Trace) -> Launches:
    """Of several host events with one correlation id a runtime's call comes first, then the earliest."""
    wanted = trace.linked_correlation[np.searchsorted(trace.linked, trace.gpu)]
    hosts = ~np.isin(trace.linked, trace.gpu) & (trace.linked_correlation > 0)
    events, ids = trace.linked[hosts], trace.linked_correlation[hosts]
    if not len(events):
        nothing = np.full(len(trace.gpu), UNTOLD, np.int64)
        return Launches(np.full(len(trace.gpu), -1, np.int64), nothing, nothing)
    codes = [i for i, name in enumerate(trace.categories) if LAUNCH_CATEGORY.search(name)]
    calls = np.isin(trace.cat[events], codes)
    first = ids[calls].min() if calls.any() else ids.min()
    order = np.lexsort((trace.ts[events], ~calls, ids))
    events, ids = events[order], ids[order]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    found = ids[at] == wanted
    # the ids of calls rise; of an event without one, the order on its stream tells
    in_flight = np.where(wanted > 0, wanted < first, _precede(trace, found))
    missing = np.where(in_flight, BEFORE, UNTOLD)
    event = np.where(found, events[at], -1)
    return Launches(
        event,
        np.where(found, trace.ts[events[at]], missing),
        np.where(found, trace.end[events[at]], missing),
    )


def _precede(trace: Trace, found: Mask) -> Mask:
    """Which GPU events start before the first on their stream whose launch was found."""
    starts, before = trace.ts[trace.gpu], np.zeros(len(found), bool)
    for device, stream in np.unique(np.stack([trace.device, trace.stream])[:, ~found], axis=1).T:
        mine = (trace.device == device) & (trace.stream == stream)
        if (mine & found).any():
            before |= mine & (starts < starts[mine & found].min())
    return before


def find_entries(trace: Trace, events: Times | NDArray[np.int32]) -> Times:
    """Of each event its entry in `trace.communication`; -1 = it says nothing."""
    index = trace.communication.index
    if not len(index):
        return np.full(len(events), -1, np.int64)
    at = np.minimum(np.searchsorted(index, events), len(index) - 1)
    return np.where(index[at] == events, at, -1)


def find_around(trace: Trace, launches: Launches) -> tuple[Times, NDArray[np.int32]]:
    """Per GPU event the entry of the record around its launch, -1 = none; and the name of the innermost label or
    operator of a collective around it, an index into `trace.names`, -1 = none."""
    records = np.flatnonzero(trace.name == _find_code(trace, RECORD))
    records = records[find_entries(trace, records) >= 0]
    labels = np.flatnonzero(
        _name_collectives(trace, COMMUNICATION_LABEL, LABEL_CATEGORIES)
        | _name_collectives(trace, COMMUNICATION_OPERATOR, OPERATOR_CATEGORIES)
    )
    record, label = (_find_innermost(trace, launches.event, found) for found in (records, labels))
    entry = find_entries(trace, np.maximum(record, 0))
    return (
        np.where(record >= 0, entry, -1),
        np.where(label >= 0, trace.name[np.maximum(label, 0)], -1).astype(np.int32),
    )


def _name_collectives(trace: Trace, pattern: re.Pattern[str], categories: tuple[str, ...]) -> Mask:
    """Which events of these categories have a name of the pattern that tells which collective it is."""
    known = [bool(pattern.search(name)) and is_collective(name) for name in trace.names]
    return trace.in_category(categories) & np.array(known, bool)[trace.name]


def _find_code(trace: Trace, name: str) -> int:
    return trace.names.index(name) if name in trace.names else -1


def _find_innermost(trace: Trace, events: Times, spans: Times) -> Times:
    """Of each event the last of `spans` to begin on its thread that contains its start; -1 = none, or no event."""
    found = np.full(len(events), -1, np.int64)
    present = events >= 0
    at, threads = trace.ts[np.maximum(events, 0)], trace.thread[np.maximum(events, 0)]
    for thread in np.unique(trace.thread[spans]):
        mine = spans[trace.thread[spans] == thread]
        mine = mine[np.lexsort((-trace.end[mine], trace.ts[mine]))]
        here = np.flatnonzero(present & (threads == thread))
        last = np.searchsorted(trace.ts[mine], at[here], side="right") - 1
        for back in range(DEEPEST):
            place = np.maximum(last - back, 0)
            inside = (last - back >= 0) & (trace.end[mine[place]] >= at[here]) & (found[here] < 0)
            found[here[inside]] = mine[place[inside]]
    return found
