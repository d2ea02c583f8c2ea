"""In what kind of gaps the GPU waited for the host and its launches: what to do about it depends on that.

short   many of them, each a small part of the step: the host launches one small event after the other
first   one long gap before the first event of a step: the host prepares something
label   long gaps, most of their time under one label of the program
long    other long gaps, as where the host waits for something else
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stratlab.analysis.dividing.collective_names import COMMUNICATION_LABEL
from stratlab.traces.intervals import Intervals, build_empty, build_union, clip, common_length, join, length
from stratlab.traces.labels import PROFILER_STEP, STEP, Window
from stratlab.traces.trace import LABEL_CATEGORIES, Trace

SHORT_BELOW_NS, SHORT_SHARE = 1_000_000, 0.05  # and of the step
MOST = 0.5  # of the waiting
WHOLE_SHARE = 0.9  # of the steps
MOST_LABELS = 500  # names; a program with more gives each sample its own

Kind = Literal["short", "first", "label", "long"]


@dataclass(frozen=True)
class Gaps:
    """Waiting for the host and its launches in the steps of a rank, ns. `labels`: long gaps under each label."""

    whole: int = 0
    short: int = 0
    first: int = 0
    longest: int = 0
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str | None:
        """That covers most of the long gaps, and more than half of the waiting; of several the innermost."""
        covering = {name: ns for name, ns in self.labels.items() if ns > MOST * self.whole}
        return min(covering, key=lambda name: covering[name], default=None)

    @property
    def kind(self) -> Kind | None:
        """None without waiting."""
        if not self.whole:
            return None
        if self.short > MOST * self.whole:
            return "short"
        if self.label is not None:
            return "label"
        return "first" if self.first > MOST * self.whole else "long"


def find_labels(trace: Trace) -> dict[str, Intervals]:
    """The labels of the program by name, without those of steps and backends."""
    found: dict[str, Intervals] = {}
    events = np.flatnonzero(trace.in_category(LABEL_CATEGORIES[:1]))
    for code in np.unique(trace.name[events])[:MOST_LABELS].tolist():
        name = trace.names[code]
        if not any(pattern.search(name) for pattern in (STEP, PROFILER_STEP, COMMUNICATION_LABEL)):
            mine = events[trace.name[events] == code]
            found[name] = build_union(trace.ts[mine], trace.end[mine])
    return found


def build_gaps(
    sets: Mapping[str, Intervals], windows: Sequence[Window], labels: Mapping[str, Intervals]
) -> Gaps:
    """Of one rank. `sets` as in `Exposure`."""
    waiting, idle = join(sets["host_wait"], sets["launch_wait"]), sets["idle"]
    whole = short = first = longest = 0
    long_gaps: list[Intervals] = []
    for window in windows:
        mine, nothing = (clip(part, window.start_ns, window.end_ns) for part in (waiting, idle))
        sizes = mine[1] - mine[0]
        is_short = sizes < min(SHORT_BELOW_NS, SHORT_SHARE * (window.end_ns - window.start_ns))
        starts_idle = len(nothing[0]) and nothing[0][0] == window.start_ns
        before = mine[1] <= (nothing[1][0] if starts_idle else window.start_ns)
        whole += int(sizes.sum())
        short += int(sizes[is_short].sum())
        first += int(sizes[before & ~is_short].sum())
        longest = max(longest, int(sizes.max(initial=0)))
        long_gaps.append((mine[0][~is_short], mine[1][~is_short]))
    every = [np.concatenate(side) for side in zip(*long_gaps, strict=True)] if long_gaps else build_empty()
    long_ones = build_union(*every)
    borders = np.array([(window.start_ns, window.end_ns) for window in windows], np.int64).reshape(-1, 2)
    steps = build_union(borders[:, 0], borders[:, 1])
    most = WHOLE_SHARE * length(steps)  # a label around everything tells nothing
    inner = {name: spans for name, spans in labels.items() if common_length(steps, spans) < most}
    under = {name: common_length(long_ones, spans) for name, spans in inner.items()}
    return Gaps(whole, short, first, longest, {name: ns for name, ns in under.items() if ns})


def build_sum(gaps: Sequence[Gaps]) -> Gaps:
    """Of several ranks; `longest` of any."""
    labels: Counter[str] = Counter()
    for each in gaps:
        labels.update(each.labels)
    return Gaps(
        sum(each.whole for each in gaps),
        sum(each.short for each in gaps),
        sum(each.first for each in gaps),
        max((each.longest for each in gaps), default=0),
        dict(labels),
    )
