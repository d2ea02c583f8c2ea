"""Measure the share of the profiled steps in which only communication ran.

The rank itself counts it, so that a run has the number even if its traces are not analyzed.

    device   comm    |   ####     ######|     kernels of NCCL and similar libraries
             compute |######  ####  ##  |     all other kernels; copies are neither
                      steps = from the first step's label to the end of their last launched kernel.
             exposed = comm without compute:   ##      ####  -> % of steps

On the host, operators replace kernels, and the backend's labels (`gloo:all_reduce`) replace those NCCL kernels.
stratlab/analysis/lanes.py divides the same time by the same patterns further, by step, collective and cause; on
public GPU traces the two agree within 0.01 points (tests/stratlab/analysis/longer/test_real_traces.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stratlab_spec.run_directory import read_line
from stratlab_spec.step_parts import COMM_EXPOSED_PCT, PROFILED_MS
from stratlab_spec.trace_events import (
    COMMUNICATION_KERNEL,
    COMMUNICATION_LABEL,
    LAUNCH_CATEGORY,
    NO_COMPUTE_OP,
    STEP,
    UNLINKED_CATEGORIES,
    Intervals,
    build_union,
    intersect,
    is_within,
    length,
    subtract,
)

CUDA_CALL = re.compile(r"^(cuda|hip|cu)[A-Z]")
NO_KERNEL = re.compile(r"^(Memcpy|Memset|Copy|Fill)|Sync")


class RecordedEvent(NamedTuple):
    """One event of the profiler; times in ns."""

    name: str
    start: int
    end: int
    on_device: bool
    is_label: bool
    thread: int
    correlation: int  # a launch and its kernel have the same
    kind: str  # as the trace's category; "" = this torch does not record one


def read_events(recorded: Iterable[Any]) -> list[RecordedEvent]:
    """Return the events of `kineto_results.events()`."""
    return [
        RecordedEvent(
            name=e.name(),
            start=e.start_ns(),
            end=e.start_ns() + e.duration_ns(),
            on_device=e.device_type().name != "CPU",
            is_label=e.is_user_annotation(),
            thread=e.start_thread_id(),
            correlation=e.correlation_id(),
            kind=e.activity_type() if hasattr(e, "activity_type") else "",
        )
        for e in recorded
    ]


class ExposedShare(NamedTuple):
    """Communication that no computation covers, % of the recorded steps, and the time of these steps, ms."""

    pct: float
    steps_ms: float


def measure_exposed(events: list[RecordedEvent]) -> ExposedShare | None:
    """Measure the exposed communication of one rank; None if no step is labelled.

    Kernels in flight when the recording began do not belong to a step: the first step begins when they have ended.
    """
    steps = [e for e in events if e.is_label and not e.on_device and STEP.match(e.name)]
    if not steps:
        return None
    low, high = min(e.start for e in steps), max(e.end for e in steps)
    whole = _union(steps)
    device = [e for e in events if e.on_device and not e.is_label]
    if device:
        launches, first = _find_launches(events)
        low = max([low, *(e.end for e in device if 0 < e.correlation < first)])
        high = max([high, *(e.end for e in device if launches.get(e.correlation, e.start) < high)])
        whole = np.array([low]), np.array([high])  # a step begins where the one before it has ended
        comm = [e for e in device if COMMUNICATION_KERNEL.search(e.name)]
        other = [e for e in device if not COMMUNICATION_KERNEL.search(e.name)]
        compute = [e for e in other if not NO_KERNEL.search(e.name)]
    else:
        comm = [e for e in events if COMMUNICATION_LABEL.match(e.name)]
        operators = [e for e in events if not (e.is_label or NO_COMPUTE_OP.search(e.name))]
        backend = _find_backend_threads(comm, operators) - {e.thread for e in steps}
        compute = [e for e in operators if e.thread not in backend]
    exposed = subtract(intersect(_union(comm), whole), _union(compute))
    steps_ns = length(whole)
    return ExposedShare(100.0 * length(exposed) / steps_ns, steps_ns / 1e6) if steps_ns > 0 else None


def _union(events: list[RecordedEvent]) -> Intervals:
    times = np.array([(e.start, e.end) for e in events], np.int64).reshape(-1, 2)
    return build_union(times[:, 0], times[:, 1])


def _find_launches(events: list[RecordedEvent]) -> tuple[dict[int, int], int]:
    """Return the launch time of each number, and the first number of the recording.

    Of several events with one number a runtime's call comes first, then the earliest.
    """

    def is_call(event: RecordedEvent) -> bool:
        return bool(LAUNCH_CATEGORY.search(event.kind) if event.kind else CUDA_CALL.match(event.name))

    hosts = [e for e in events if not e.on_device and e.correlation > 0 and e.kind not in UNLINKED_CATEGORIES]
    hosts = [e for e in hosts if e.kind or is_call(e)]
    launches: dict[int, int] = {}
    for event in sorted(hosts, key=lambda e: (not is_call(e), e.start)):
        launches.setdefault(event.correlation, event.start)
    calls = [e.correlation for e in hosts if is_call(e)]
    return launches, min(calls or launches, default=0)


def _find_backend_threads(comm: list[RecordedEvent], operators: list[RecordedEvent]) -> set[int]:
    """Return threads with most of their operators inside a backend's labels; autograd's has a label now and then."""
    found = set()
    for thread in {e.thread for e in comm}:
        labels = _union([e for e in comm if e.thread == thread])
        starts = np.unique(np.array([e.start for e in operators if e.thread == thread], np.int64))
        if 2 * is_within(starts, labels).sum() >= len(starts):
            found.add(thread)
    return found


def read_exposed_pct(manifest: Path) -> float | None:
    """Read the exposed communication of all ranks from traces/manifest.json, % of the summed time of their steps.

    This is the analysis' definition (`build_means`). A rank whose profiler starts early waits for the others in its
    first step: a mean of the ranks' shares would weigh that step less. None without any rank's share.
    """
    try:
        content = read_line(manifest.read_bytes())
    except OSError:
        return None
    entries = [e for name in ("files", "dropped") for e in content.get(name) or [] if isinstance(e, dict)]
    known = [e for e in entries if isinstance(e.get(COMM_EXPOSED_PCT), int | float)]
    weights = [ms if isinstance(ms := e.get(PROFILED_MS), int | float) else 0.0 for e in known]
    if 0.0 in weights:  # a manifest of an earlier version
        weights = [1.0 for _ in known]
    total = sum(weight * e[COMM_EXPOSED_PCT] for weight, e in zip(weights, known, strict=True))
    return total / sum(weights) if known else None
