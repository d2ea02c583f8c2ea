"""The rows of the report: one per rank and step, one per rank, step and phase, and their means."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratlab.analysis.dividing.lanes import Lanes, Source
from stratlab.analysis.dividing.partition import Partition
from stratlab.analysis.dividing.segments import SPANS, Segments
from stratlab.traces.intervals import Intervals, Times, build_union, length
from stratlab.traces.labels import PHASES

PARTS = (
    *("compute", "comm", "comm_overlap", "comm_exposed", "straggler", "bubble", "copy", "copy_exposed"),
    *("idle", "data_wait", "host_wait", "launch_wait", "kernel_wait", "other_idle"),
)


@dataclass(frozen=True)
class StepRow:
    """One step of one rank. `source` says whose time this is; all times in ms.

    comm = exposed + overlapped with compute; exposed includes straggler and bubble; idle = the five behind it.
    `data_wait_ms` is None in a trace without a label of data loading. Phases: `data_ms` is always host time; the others
    are GPU time of the work issued inside the label (source gpu), or the label's own duration (source cpu); None
    without such a label.
    """

    rank: int
    step: int
    source: Source
    step_ms: float
    host_step_ms: float
    compute_ms: float
    comm_ms: float
    comm_overlap_ms: float
    comm_exposed_ms: float
    straggler_ms: float
    bubble_ms: float
    copy_ms: float
    copy_exposed_ms: float
    idle_ms: float
    data_wait_ms: float | None
    host_wait_ms: float
    launch_wait_ms: float
    kernel_wait_ms: float
    other_idle_ms: float
    data_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None


@dataclass(frozen=True)
class PhaseRow:
    """One phase of one step of one rank, ms; the phases of a step lie side by side and sum to it."""

    rank: int
    step: int
    phase: str
    span_ms: float
    compute_ms: float
    comm_ms: float
    comm_overlap_ms: float
    comm_exposed_ms: float
    straggler_ms: float
    bubble_ms: float
    copy_ms: float
    copy_exposed_ms: float
    idle_ms: float
    data_wait_ms: float | None
    host_wait_ms: float
    launch_wait_ms: float
    kernel_wait_ms: float
    other_idle_ms: float


def build_label_times(
    lanes: Lanes, segments: Segments, numbers: Sequence[int], phases: dict[str, list[Intervals]]
) -> dict[str, list[int]]:
    """Per labelled phase and kept step: time of the label itself, or of the GPU work issued inside it, ns.

    Args:
        numbers: which of the host's steps each kept step is.
    """
    return {
        phase: [_label_ns(phase, lanes, steps[number]) for number in numbers]
        for phase, steps in phases.items()
    }


def _label_ns(phase: str, lanes: Lanes, labels: Intervals) -> int:
    if lanes.source == "cpu" or phase == "data":
        return length(build_union(*labels))
    issued = [lanes.issued_within(int(start), int(end)) for start, end in zip(*labels, strict=True)]
    return length(lanes.union(np.concatenate(issued))) if issued else 0


def build_step_rows(
    rank: int,
    source: Source,
    segments: Segments,
    partition: Partition,
    labels: dict[str, list[int]],
) -> list[StepRow]:
    """One row per kept step."""
    sums = {
        name: _sum_by(segments.step, partition.times[name], len(segments.windows))
        for name in ("span", *PARTS)
    }
    rows = []
    for i, (window, host) in enumerate(zip(segments.windows, segments.hosts, strict=True)):
        times: dict[str, Any] = {f"{name}_ms": int(sums[name][i]) / 1e6 for name in PARTS}
        times["data_wait_ms"] = times["data_wait_ms"] if "data" in labels else None
        phases: dict[str, Any] = {f"{p}_ms": labels[p][i] / 1e6 if p in labels else None for p in PHASES}
        host_ms = (host.end_ns - max(host.start_ns, 0)) / 1e6
        rows.append(
            StepRow(rank, window.step, source, int(sums["span"][i]) / 1e6, host_ms, **times, **phases)
        )
    return rows


def build_phase_rows(
    rank: int, segments: Segments, partition: Partition, labels: Collection[str]
) -> list[PhaseRow]:
    """One row per phase that a step has, in the order of SPANS. `labels`: the phases that the trace labels."""
    where = segments.step * len(SPANS) + segments.phase
    count = len(segments.windows) * len(SPANS)
    sums = {name: _sum_by(where, partition.times[name], count) for name in ("span", *PARTS)}
    return [
        PhaseRow(
            rank,
            segments.windows[i // len(SPANS)].step,
            SPANS[i % len(SPANS)],
            *(
                int(sums[name][i]) / 1e6 if name != "data_wait" or "data" in labels else None
                for name in ("span", *PARTS)
            ),  # type: ignore[arg-type]
        )
        for i in np.flatnonzero(sums["span"]).tolist()
    ]


def _sum_by(index: Times, values: Times, count: int) -> Times:
    """Exact: bincount would add in float64."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, index, values)
    return sums


TIMES = ("step_ms", "host_step_ms", *(f"{phase}_ms" for phase in PHASES))
SHARES = (
    *("compute", "comm", "comm_exposed", "straggler", "bubble", "copy_exposed", "idle"),
    *("data_wait", "host_wait", "launch_wait", "kernel_wait", "other_idle"),
)


def build_means(rows: Sequence[StepRow]) -> dict[str, float | None]:
    """Means over rows: times per step in ms, shares in percent of the summed step time.

    `comm_overlap_pct` is the share of the communication that compute hides, None without communication. A
    phase that some row lacks is None.
    """
    assert rows
    sums = {name: _total(rows, f"{name}_ms") for name in ("step", "comm", "comm_overlap", *SHARES)}
    means = {name: _divide(_total(rows, name), len(rows)) for name in TIMES}
    means |= {f"{name}_pct": _divide(sums[name], sums["step"], 100) for name in SHARES}
    return means | {"comm_overlap_pct": _divide(sums["comm_overlap"], sums["comm"], 100)}


def _total(rows: Sequence[StepRow], name: str) -> float | None:
    values = [getattr(row, name) for row in rows]
    return None if None in values else sum(values)


def _divide(a: float | None, b: float | None, factor: float = 1.0) -> float | None:
    return factor * a / b if a is not None and b else None
