"""The labels that the trainer writes into a trace: where a step and its phases begin and end on the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stratlab.traces.chunks import TraceError
from stratlab.traces.intervals import Intervals, Times
from stratlab.traces.trace import LABEL_CATEGORIES, Trace

STEP = re.compile(r"^## ?Training Step (\d+) ?##$", re.IGNORECASE)
PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)$")
PHASES = {
    "data": re.compile(r"^## ?Data Loading ?##$", re.IGNORECASE),
    "forward": re.compile(r"^## ?Forward Pass ?##$", re.IGNORECASE),
    "backward": re.compile(r"^## ?Backward Pass ?##$", re.IGNORECASE),
    "optimizer": re.compile(r"^## ?Optimizer Step ?##$", re.IGNORECASE),
}


@dataclass(frozen=True)
class Window:
    """One training step on the host, ns since the first event."""

    step: int
    start_ns: int
    end_ns: int


def build_windows(trace: Trace) -> list[Window]:
    """The steps in time order: by `## Training Step i ##`, else by the profiler's own `ProfilerStep#i`.

    Raises:
        TraceError: the trace has neither.
    """
    labels = np.flatnonzero(trace.in_category(LABEL_CATEGORIES))
    for pattern in (STEP, PROFILER_STEP):
        found = _matching(trace, labels, pattern)
        if len(found):
            found = found[np.argsort(trace.ts[found], kind="stable")]
            numbers = [int(pattern.match(trace.names[trace.name[i]])[1]) for i in found]  # type: ignore[index]
            return [
                Window(number, int(trace.ts[i]), int(trace.end[i]))
                for number, i in zip(numbers, found, strict=True)
            ]
    raise TraceError("holds neither '## Training Step i ##' nor 'ProfilerStep#i'")


def find_phases(trace: Trace) -> list[str]:
    """Which phases are labelled at all."""
    labels = np.flatnonzero(trace.in_category(LABEL_CATEGORIES))
    return [phase for phase, pattern in PHASES.items() if len(_matching(trace, labels, pattern))]


def _matching(trace: Trace, events: Times, pattern: re.Pattern[str]) -> Times:
    """Of these few events: a mask over all would cost as much as the trace."""
    return events[[bool(pattern.search(trace.names[code])) for code in trace.name[events].tolist()]]


def build_phase_labels(trace: Trace, windows: list[Window]) -> dict[str, list[Intervals]]:
    """The labels' times per phase and step, several with gradient accumulation. A phase without a label is
    absent.

    A label belongs to the step in which it starts; one that lies between two steps belongs to the next.
    """
    all_labels = np.flatnonzero(trace.in_category(LABEL_CATEGORIES))
    ends = [window.end_ns for window in windows]
    labels = {}
    for phase in find_phases(trace):
        found = _matching(trace, all_labels, PHASES[phase])
        owner = np.searchsorted(ends, trace.ts[found], side="right")
        steps = [found[owner == i] for i in range(len(windows))]
        labels[phase] = [(trace.ts[mine], trace.end[mine]) for mine in steps]
    return labels
