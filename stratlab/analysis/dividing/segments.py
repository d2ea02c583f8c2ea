"""Cuts every step of a rank into the spans of its phases, on the time line on which the events ran.

    host   |data|  forward  |   backward   | opt |      labels
    GPU        |..|   forward    |    backward     | opt |   each border moved to where the GPU had ended what was
                                                             issued before it

The spans of a step lie side by side and cover it; what lies between two labels is `other`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stratlab.analysis.dividing.lanes import Lanes
from stratlab.traces.intervals import Intervals, Times
from stratlab.traces.labels import PHASES, Window

SPANS = (*PHASES, "other")


@dataclass(frozen=True)
class Segments:
    """Spans in time order. `step` indexes `windows`, `phase` indexes SPANS."""

    windows: list[Window]  # on the lanes' time line; without the steps in which nothing was issued
    hosts: list[Window]  # the same steps as the host's labels have them
    starts: Times
    ends: Times
    step: Times
    phase: Times


def build_segments(lanes: Lanes, hosts: list[Window], phases: dict[str, list[Intervals]]) -> Segments:
    """`phases` as `build_phase_labels` gives them: per phase and step the labels' times on the host."""
    windows: list[Window] = []
    kept: list[Window] = []
    rows: list[tuple[int, int, int, int]] = []
    for index, host in enumerate(hosts):
        if not len(lanes.issued_within(host.start_ns, host.end_ns)):
            continue
        low, high = (int(t) for t in lanes.settle(np.array([host.start_ns, host.end_ns], np.int64)))
        if host.is_recording:
            low, high = lanes.extent()
        if low >= high:
            continue
        labels = sorted(
            (int(start), int(end), SPANS.index(phase))
            for phase, steps in phases.items()
            for start, end in zip(*steps[index], strict=True)
        )
        at = low
        for start, end, phase in labels:
            begin, stop = (int(t) for t in lanes.settle(np.array([start, end], np.int64)))
            begin, stop = max(begin, at), min(stop, high)
            if begin < stop:
                rows += [(at, begin, len(windows), len(PHASES)), (begin, stop, len(windows), phase)]
                at = stop
        rows.append((at, high, len(windows), len(PHASES)))
        windows.append(Window(host.step, low, high))
        kept.append(host)
    table = np.array([row for row in rows if row[1] > row[0]], np.int64).reshape(-1, 4)
    return Segments(windows, kept, *table.T)
