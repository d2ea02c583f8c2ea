"""One recorded step of each rank for drawing: parts of time, phases and collectives.

The step is the middle one of the steps that most ranks have, by their mean length. It is known only after all ranks
were read. Until then every step is kept in BINS equal parts of its time, each with one of STATES. A shorter state
takes a part of its own when remainders of earlier parts suffice, so that the parts of a state sum to its time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stratlab.analysis.collective_calls import CallKind, Match
from stratlab.analysis.time_breakdown import MATCHED, SPANS, MeasuredTrace, find_bubble, find_waits
from stratlab.traces.trace import Window
from stratlab_spec.step_parts import PARTS
from stratlab_spec.trace_events import Intervals, build_covered_share, covered_until, intersect

BINS = 4096
AT_ONCE = 32  # steps whose shares are in memory, 0.2 MB each
STATES = tuple(part.name for part in PARTS if part.key)
EXPOSED = STATES.index("comm_exposed")

States = NDArray[np.uint8]
"""Indexes of STATES, one per bin."""


@dataclass(frozen=True)
class DrawnCall:
    """One collective, ns since the start of the step; `wait_ns` of it, at its start, for the last rank."""

    name: str
    axis: str
    start_ns: int
    end_ns: int
    wait_ns: int
    bytes: int | None


@dataclass(frozen=True)
class DrawnStep:
    """One step of one rank. `start_ns` on the rank's own clock; `phases`: name, start and end since then."""

    step: int
    start_ns: int
    length_ns: int
    states: States
    phases: list[tuple[str, int, int]]
    calls: list[DrawnCall]


def build_states(sets: Mapping[str, Intervals], windows: Sequence[Window]) -> States:
    """Return the states of every step, shape (steps, BINS); all exposed communication is one state. `sets` as in
    `Exposure`.
    """
    chosen = [np.empty((0, BINS), np.uint8)]
    for first in range(0, len(windows), AT_ONCE):
        some = windows[first : first + AT_ONCE]
        edges = np.stack([np.linspace(w.start_ns, w.end_ns, BINS + 1).astype(np.int64) for w in some])
        shares = np.zeros((len(some), len(STATES), BINS), np.float32)
        for state, name in enumerate(STATES):
            if name not in MATCHED:
                covered = covered_until(sets[name], edges.ravel()).reshape(edges.shape)
                shares[:, state] = np.diff(covered) / np.maximum(np.diff(edges), 1)
        chosen.append(choose_states(shares))
    return np.concatenate(chosen)


def choose_states(shares: NDArray[np.float32]) -> States:
    """Return one state per bin from the shares of each, shape (steps, states, bins): of those that are in the bin the
    one with most time that no bin shows yet.
    """
    steps, _, bins = shares.shape
    owed = np.zeros(shares.shape[:2], np.float32)
    chosen, every = np.empty((steps, bins), np.uint8), np.arange(steps)
    for place in range(bins):
        here = shares[:, :, place]
        owed += here
        chosen[:, place] = best = np.where(here > 0, owed, -np.inf).argmax(axis=1)
        owed[every, best] -= 1
    return chosen


def coarsen(states: States, factor: int) -> States:
    """Return the states of one step, with `factor` times fewer bins."""
    shares = [(states.reshape(-1, factor) == state).mean(axis=1) for state in range(len(STATES))]
    return choose_states(np.array([shares], np.float32))[0]


def choose_step(lengths: Mapping[int, Sequence[int]]) -> int | None:
    """Return the middle one of the steps that most ranks have. `lengths`: step -> its length on each rank."""
    most = max(map(len, lengths.values()), default=0)
    means = sorted((statistics.fmean(each), step) for step, each in lengths.items() if len(each) == most)
    return means[(len(means) - 1) // 2][1] if means else None


def build_drawn_step(
    measured: MeasuredTrace,
    states: States,
    step: int | None,
    origin_ns: int,
    matches: Mapping[CallKind, Match],
    is_pipeline: bool,
) -> DrawnStep | None:
    """Return the drawn step of one rank; None if it does not have the step. `states`: of `build_states`."""
    segments, calls = measured.segments, measured.calls
    index = next((i for i, window in enumerate(segments.windows) if window.step == step), None)
    if index is None:
        return None
    window = segments.windows[index]
    low, high = window.start_ns, window.end_ns
    mine = states[index].copy()
    bubble, waits = find_bubble(measured.exposed, is_pipeline), find_waits(calls, matches)
    exposed_waits = [intersect(part, waits) for key, part in measured.exposed.items() if key not in bubble]
    found = {"bubble": [measured.exposed[key] for key in bubble], "straggler": exposed_waits}
    for name, spans in found.items():
        for span in spans:
            mine[(mine == EXPOSED) & (build_covered_share(span, low, high, BINS) > 0.5)] = STATES.index(name)
    of_step = segments.step == index
    phases = [
        (SPANS[phase], int(start) - low, int(end) - low)
        for phase, start, end in zip(
            segments.phase[of_step], segments.starts[of_step], segments.ends[of_step], strict=True
        )
    ]
    lasting = (calls.ends > low) & (calls.starts < high)
    waiting = np.zeros(len(calls.starts), np.int64)
    for number, kind in enumerate(calls.kinds):
        if kind in matches:
            of_kind = calls.kind == number
            waiting[of_kind] = (calls.ends - calls.starts)[of_kind] - matches[kind].shortest
    drawn = [
        DrawnCall(
            name=(key := calls.kinds[calls.kind[i]].key).collective,
            axis=key.axis,
            start_ns=max(int(calls.starts[i]), low) - low,
            end_ns=min(int(calls.ends[i]), high) - low,
            wait_ns=int(waiting[i]),
            bytes=int(calls.bytes[i]) if calls.bytes[i] >= 0 else None,
        )
        for i in np.flatnonzero(lasting)
    ]
    return DrawnStep(window.step, origin_ns + low, high - low, mine, phases, drawn)
