"""How much of the profiled steps nothing but communication ran: a rank's own count, so that a run has the number
whether its traces are analyzed or not.

    device   comm    |   ####     ######|     kernels of NCCL and its like
             compute |######  ####  ##  |     all other kernels; copies are neither
                      steps = from the first step's label to the end of what was launched in them
             exposed = comm without compute:   ##      ####  -> % of steps

On the host operators take the place of kernels, and what the backend labels (`gloo:all_reduce`) that of NCCL. The rules
are those of stratlab/analysis/lanes.py, which divides the same time further, by step, collective and cause; on
public GPU traces the two agree within 0.01 points (tests/stratlab/analysis/test_real_traces.py).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from stratlab_spec.run_directory import read_line

STEP = re.compile(r"^## ?Training Step \d+ ?##$")
COMMUNICATION_KERNEL = re.compile(
    r"^(nccl|rccl|hccl|hcom_|oneccl)|ncclKernel|msccl|\b(one)?ccl::"
    r"|\b(intranode|internode)(_ll)?::(?!get_dispatch_layout)"
    r"|nvshmem|cross_device_reduce|(one_shot|two_shot)_all_reduce|\bmultimem_|\buserbuffers_"
    r"|^(Memcpy|Copy) ?(PtoP|PeerToPeer)"
)
COMMUNICATION_LABEL = re.compile(r"^(gloo|mpi|ucc|cncl|[a-z]*ccl):")
NO_COMPUTE_OP = re.compile(
    r"^(c10d::|_c10d|record_param_comms|autograd::engine|torch::autograd::)|Backward\d*$|^(## |ProfilerStep#)"
)
# what launches nothing itself; every other event of the host may be a launch, of whatever device
UNLINKED = (
    "cpu_op",
    "Operator",
    "python_function",
    "user_annotation",
    "gpu_user_annotation",
    "cpu_instant_event",
)
RUNTIME = re.compile(r"_(runtime|driver)$|^Runtime$")
CUDA_CALL = re.compile(r"^(cuda|hip|cu)[A-Z]")
NO_KERNEL = re.compile(r"^(Memcpy|Memset|Copy|Fill)|Sync")

Span = tuple[int, int]


class Event(NamedTuple):
    """What the profiler has recorded of one event; times in ns."""

    name: str
    start: int
    end: int
    on_device: bool
    is_label: bool
    thread: int
    correlation: int  # a launch and its kernel have the same
    kind: str  # as the trace's category; "" = this torch tells none


def read_events(recorded: Iterable[Any]) -> list[Event]:
    """Of `kineto_results.events()`."""
    return [
        Event(
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


def measure_exposed_pct(events: list[Event]) -> float | None:
    """Communication that no computation covers, % of the recorded steps; None if no step is labelled.

    What was in flight when the recording began belongs to no step: the first one begins when it has ended.
    """
    steps = [e for e in events if e.is_label and not e.on_device and STEP.match(e.name)]
    if not steps:
        return None
    low, high = min(e.start for e in steps), max(e.end for e in steps)
    whole = _union([(e.start, e.end) for e in steps], low, high)
    device = [e for e in events if e.on_device and not e.is_label]
    if device:
        launches, first = _find_launches(events)
        low = max([low, *(e.end for e in device if 0 < e.correlation < first)])
        high = max([high, *(e.end for e in device if launches.get(e.correlation, e.start) < high)])
        whole = [(low, high)]  # a step begins where the one before it has ended
        comm = [e for e in device if COMMUNICATION_KERNEL.search(e.name)]
        other = [e for e in device if not COMMUNICATION_KERNEL.search(e.name)]
        compute = [e for e in other if not NO_KERNEL.search(e.name)]
    else:
        comm = [e for e in events if COMMUNICATION_LABEL.match(e.name)]
        operators = [e for e in events if not (e.is_label or NO_COMPUTE_OP.search(e.name))]
        backend = _find_backend_threads(comm, operators) - {e.thread for e in steps}
        compute = [e for e in operators if e.thread not in backend]
    busy, covered = (_union([(e.start, e.end) for e in chosen], low, high) for chosen in (comm, compute))
    busy = _both(busy, whole)
    length = _length(whole)
    return 100.0 * (_length(busy) - _length(_both(busy, covered))) / length if length > 0 else None


def _find_launches(events: list[Event]) -> tuple[dict[int, int], int]:
    """When each number was launched, and the first number of the recording: of several events with one number a
    runtime's call comes first, then the earliest."""

    def is_call(event: Event) -> bool:
        return bool(RUNTIME.search(event.kind) if event.kind else CUDA_CALL.match(event.name))

    hosts = [e for e in events if not e.on_device and e.correlation > 0 and e.kind not in UNLINKED]
    hosts = [e for e in hosts if e.kind or is_call(e)]
    launches: dict[int, int] = {}
    for event in sorted(hosts, key=lambda e: (not is_call(e), e.start)):
        launches.setdefault(event.correlation, event.start)
    calls = [e.correlation for e in hosts if is_call(e)]
    return launches, min(calls or launches, default=0)


def _find_backend_threads(comm: list[Event], operators: list[Event]) -> set[int]:
    """Threads most of whose operators lie in a backend's labels; autograd's has a label now and then."""
    found = set()
    for thread in {e.thread for e in comm}:
        labels = [(e.start, e.end) for e in comm if e.thread == thread]
        starts = {e.start for e in operators if e.thread == thread}
        spans = _union(labels, min(low for low, _ in labels), max(high for _, high in labels))
        points = _union([(at, at + 1) for at in starts], min(starts, default=0), max(starts, default=0) + 1)
        if 2 * _length(_both(points, spans)) >= len(starts):
            found.add(thread)
    return found


def read_exposed_pct(manifest: Path) -> float | None:
    """The mean over the ranks, out of traces/manifest.json; None where no rank has it."""
    try:
        content = read_line(manifest.read_bytes())
    except OSError:
        return None
    entries = [e for name in ("files", "dropped") for e in content.get(name) or [] if isinstance(e, dict)]
    shares = [pct for e in entries if isinstance(pct := e.get("comm_exposed_pct"), int | float)]
    return statistics.fmean(shares) if shares else None


def _union(spans: list[Span], low: int, high: int) -> list[Span]:
    """Disjoint and sorted, cut to [low, high]."""
    merged: list[Span] = []
    for start, end in sorted((max(start, low), min(end, high)) for start, end in spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _both(one: list[Span], other: list[Span]) -> list[Span]:
    """Where both are; of disjoint and sorted spans."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        i, j = (i + 1, j) if one[i][1] < other[j][1] else (i, j + 1)
    return found


def _length(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)
