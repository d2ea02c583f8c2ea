"""The labels of a trace: where a step and its phases begin and end on the host. The trainer writes its own; in traces
of other programs torch's count, else those of their training loops."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stratlab.traces.intervals import Intervals, Times, build_union, is_within
from stratlab.traces.trace import BEFORE, LABEL_CATEGORIES, Trace

StepsFrom = Literal["labels", "profiler", "recording"]

STEP = re.compile(r"^## ?Training Step (\d{1,18}) ?##$", re.IGNORECASE)
PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")
PHASES = {
    "data": re.compile(r"^## ?Data Loading ?##$", re.IGNORECASE),
    "forward": re.compile(r"^## ?Forward Pass ?##$", re.IGNORECASE),
    "backward": re.compile(r"^## ?Backward Pass ?##$", re.IGNORECASE),
    "optimizer": re.compile(r"^## ?Optimizer Step ?##$", re.IGNORECASE),
}
OTHER_LABELS = {  # the first that the trace has, where it has no label of PHASES for that phase
    "data": (
        re.compile(r"^enumerate\((DataLoader|DataPipe)\)#"),  # torch
        re.compile(r"^\[pl\]\[profile\].*(_next|get_train_batch)$"),  # Lightning's PyTorchProfiler
        re.compile(r"(^|\.)next\(data_iter\)$"),  # TorchTNT
    ),
    # of torch; Lightning's own optimizer_step holds the forward pass too
    "optimizer": (re.compile(r"^Optimizer\.(step|zero_grad)#"),),
}
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
IN_CLOSURE = re.compile(
    r"^Optimizer\.zero_grad#|^\[pl\]\[profile\]\[Strategy\]\w+\.(training_step|backward)$"
)


@dataclass(frozen=True)
class Window:
    """One training step on the host, ns since the first event. `is_recording`: no step, but all that was recorded."""

    step: int
    start_ns: int
    end_ns: int
    is_recording: bool = False


def find_steps(trace: Trace) -> tuple[StepsFrom, list[Window]]:
    """The steps in time order, and what tells them: `## Training Step i ##`, else the profiler's own `ProfilerStep#i`.
    Of a trace with neither the whole recording counts as one step, also what was in flight when it began."""
    labels = np.flatnonzero(trace.in_category(LABEL_CATEGORIES))
    patterns: tuple[tuple[StepsFrom, re.Pattern[str]], ...] = (("labels", STEP), ("profiler", PROFILER_STEP))
    for origin, pattern in patterns:
        found = _matching(trace, labels, pattern)
        if len(found):
            found = found[np.argsort(trace.ts[found], kind="stable")]
            numbers = [int(pattern.match(trace.names[trace.name[i]])[1]) for i in found]  # type: ignore[index]
            return origin, [
                Window(number, int(trace.ts[i]), int(trace.end[i]))
                for number, i in zip(numbers, found, strict=True)
            ]
    return "recording", [Window(1, BEFORE, int(trace.end.max()), is_recording=True)]


def find_phases(trace: Trace) -> list[str]:
    """Which phases are labelled at all."""
    return [phase for phase in PHASES if len(_find_phase(trace, phase))]


def _find_phase(trace: Trace, phase: str) -> Times:
    """The events that label the phase: the trainer's, else torch's, else those of another training loop."""
    labels = np.flatnonzero(trace.in_category(LABEL_CATEGORIES))
    for pattern in (PHASES[phase], *OTHER_LABELS.get(phase, ())):
        if len(found := _matching(trace, labels, pattern)):
            is_closed = phase == "optimizer" and _run_closures(trace, labels)
            return labels[:0] if is_closed and pattern is not PHASES[phase] else found
    return labels[:0]


def _run_closures(trace: Trace, labels: Times) -> bool:
    """Whether `Optimizer.step` runs forward and backward pass too, as Lightning calls it."""
    steps, inner = (_matching(trace, labels, pattern) for pattern in (OPTIMIZER_STEP, IN_CLOSURE))
    return bool(is_within(trace.ts[inner], build_union(trace.ts[steps], trace.end[steps])).any())


def _matching(trace: Trace, events: Times, pattern: re.Pattern[str]) -> Times:
    """Of these events; each of their names is looked at once."""
    codes = [code for code in np.unique(trace.name[events]).tolist() if pattern.search(trace.names[code])]
    return events[np.isin(trace.name[events], codes)]


def build_phase_labels(trace: Trace, windows: list[Window]) -> dict[str, list[Intervals]]:
    """The labels' times per phase and step, several with gradient accumulation. A phase without a label is
    absent.

    A label belongs to the step in which it starts; one that lies between two steps belongs to the next.
    """
    ends = [window.end_ns for window in windows]
    labels = {}
    for phase in find_phases(trace):
        found = _find_phase(trace, phase)
        owner = np.searchsorted(ends, trace.ts[found], side="right")
        steps = [found[owner == i] for i in range(len(windows))]
        labels[phase] = [(trace.ts[mine], trace.end[mine]) for mine in steps]
    return labels
