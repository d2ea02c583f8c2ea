"""Where the time of each step went: compute + exposed communication + exposed copies + idle, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stratlab.analysis.lanes import Lanes, Source
from stratlab.traces.intervals import Intervals, build_union, clip, common_length, join, length
from stratlab.traces.labels import PHASES, Window


@dataclass(frozen=True)
class StepRow:
    """One step of one rank. `source` says whose time this is; all times in ms.

    comm = exposed + overlapped with compute. Phases: `data_ms` is always host time; the others are GPU time
    of the work issued inside the label (source gpu), or the label's own duration (source cpu); None without
    such a label.
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
    copy_exposed_ms: float
    idle_ms: float
    data_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None


def build_rows(
    rank: int, lanes: Lanes, windows: list[Window], phases: dict[str, list[Intervals]]
) -> list[StepRow]:
    """One row per step; `windows` and `phases` are the host's labels, the steps of `lanes` may be the
    GPU's."""
    compute = lanes.union(lanes.is_compute)
    communication = lanes.union(lanes.is_communication)
    busy = lanes.union()
    rows = []
    for index, (host, window) in enumerate(zip(windows, lanes.windows, strict=True)):
        if window is None:
            continue
        computes, communicates, works = (
            clip(part, window.start_us, window.end_us) for part in (compute, communication, busy)
        )
        overlap_us = common_length(communicates, computes)
        times_us: dict[str, float | None] = {
            "step": window.end_us - window.start_us,
            "host_step": host.end_us - host.start_us,
            "compute": length(computes),
            "comm": length(communicates),
            "comm_overlap": overlap_us,
            "comm_exposed": length(communicates) - overlap_us,
            "copy_exposed": length(works) - length(join(computes, communicates)),
            "idle": window.end_us - window.start_us - length(works),
        }
        for phase in PHASES:
            times_us[phase] = _phase_us(phase, lanes, phases[phase][index]) if phase in phases else None
        times_ms = {f"{name}_ms": us if us is None else us / 1000 for name, us in times_us.items()}
        rows.append(StepRow(rank, window.step, lanes.source, **times_ms))  # type: ignore[arg-type]
    return rows


def _phase_us(phase: str, lanes: Lanes, labels: Intervals) -> float:
    if lanes.source == "cpu" or phase == "data":
        return length(build_union(*labels))
    issued = np.zeros(len(lanes.issued), bool)
    for start, end in zip(*labels, strict=True):
        issued |= (lanes.issued >= start) & (lanes.issued < end)
    return length(lanes.union(issued))


TIMES = ("step_ms", "host_step_ms", *(f"{phase}_ms" for phase in PHASES))
SHARES = ("compute", "comm", "comm_exposed", "copy_exposed", "idle")


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
