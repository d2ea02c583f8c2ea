"""Names of torch.profiler's events: the trainer's labels, collectives, launches; and interval arithmetic for their
times.

The trainer counts its exposed communication by these rules, the analysis divides the same time with them.

A set of times is a pair of int64 arrays (starts, ends) in whole nanoseconds, so that every sum is exact.
`build_union` makes a set sorted and disjoint; the other functions expect and return such sets.

`measure_exposed` measures the share of the profiled steps in which only communication ran.
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
from numpy.typing import NDArray

from stratlab_spec.run_directory import read_line
from stratlab_spec.step_parts import COMM_EXPOSED_PCT, PROFILED_MS

STEP_LABEL = "## Training Step {step} ##"
LABELS = {
    "data": "## Data Loading ##",
    "forward": "## Forward Pass ##",
    "backward": "## Backward Pass ##",
    "optimizer": "## Optimizer Step ##",
}
"""Phase -> the label that the trainer gives it."""
STEP = re.compile(r"^## ?Training Step (\d{1,18}) ?##$", re.IGNORECASE)

# HTA knows the first three names only: for it the others compute. The libraries of other makers (hcom is Ascend's),
# DeepEP under any of its names (`deep_ep::`, `dpsk::ep::`; its layout and CUB's scans in `cdpsk::ep::` do compute),
# NVSHMEM, vLLM's and torch's own all-reduce, TransformerEngine's userbuffers, and copies to another GPU.
COMMUNICATION_KERNEL = re.compile(
    r"^(nccl|rccl|hccl|hcom_|oneccl)|ncclKernel|msccl|\b(one)?ccl::"
    r"|\b(intranode|internode)(_ll)?::(?!get_dispatch_layout)"
    r"|nvshmem|cross_device_reduce|(one_shot|two_shot)_all_reduce|\bmultimem_|\buserbuffers_"
    r"|^(Memcpy|Copy) ?(PtoP|PeerToPeer)"
)
COMMUNICATION_LABEL = re.compile(r"^(gloo|mpi|ucc|cncl|[a-z]*ccl):")
# Not computation: entering a collective, and autograd's wrappers, whose own time is hooks that wait for one
# (FSDP waits inside RegisterPostBackwardFunctionBackward).
NO_COMPUTE_OP = re.compile(
    r"^(c10d::|_c10d|record_param_comms|autograd::engine|torch::autograd::)|Backward\d*$"
    # of old writers: torch 2.1's operators of collectives, and labels, which writers of 2021 call operators
    r"|^(## |ProfilerStep#|c10d_functional::|\[pl\]|enumerate\(|Optimizer\.)"
)

# Labels, operators and Python's stack, which are most of a trace and launch nothing themselves. Every other host event
# may be a launch: `cuda_runtime`, `hip_driver`, `xpu_runtime`, `privateuse1_runtime`, and those of devices to come.
OPERATOR_CATEGORIES = ("cpu_op", "Operator")
UNLINKED_CATEGORIES = (
    *OPERATOR_CATEGORIES,
    *("python_function", "user_annotation", "gpu_user_annotation", "cpu_instant_event"),
)
LAUNCH_CATEGORY = re.compile(r"_(runtime|driver)$|^Runtime$")


Times = NDArray[np.int64]
Intervals = tuple[Times, Times]
Mask = NDArray[np.bool_]


def find_distinct(codes: NDArray[Any]) -> list[int]:
    """Return the codes that occur, ascending, as `np.unique`, which imports numpy.ma. Codes count from 0."""
    return np.flatnonzero(np.bincount(codes)).tolist()


def build_empty() -> Intervals:
    """Return an empty set."""
    return np.empty(0, np.int64), np.empty(0, np.int64)


def build_union(starts: Times, ends: Times) -> Intervals:
    """Return sorted, disjoint intervals that cover the same time; adjacent ones are joined, empty ones dropped."""
    some = ends > starts
    if not some.all():
        starts, ends = starts[some], ends[some]
    if not len(starts):
        return build_empty()
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(starts), bool)
    opens[1:] = starts[1:] > reach[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts)) - 1
    return starts[first], reach[last]


def join(a: Intervals, b: Intervals) -> Intervals:
    """Return the union of two sets."""
    return build_union(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time of `a` that is not in `b`."""
    if not len(a[0]) or not len(b[0]):
        return a
    starts = a[0][~is_within(a[0], b)], b[1][is_within(b[1], a, after_start=True)]
    ends = (
        a[1][~is_within(a[1], b, after_start=True, to_end=True)],
        b[0][is_within(b[0], a, after_start=True)],
    )
    return _merge(*starts), _merge(*ends)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time in both sets."""
    if not len(a[0]) or not len(b[0]):
        return build_empty()
    starts = a[0][is_within(a[0], b)], b[0][is_within(b[0], a, after_start=True)]
    ends = a[1][is_within(a[1], b, after_start=True, to_end=True)], b[1][is_within(b[1], a, after_start=True)]
    return _merge(*starts), _merge(*ends)


def _merge(one: Times, other: Times) -> Times:
    """Return two ascending arrays as one: a stable sort finds the runs."""
    return np.sort(np.concatenate([one, other]), kind="stable")


def is_within(at: Times, a: Intervals, *, after_start: bool = False, to_end: bool = False) -> Mask:
    """Return whether each point is in [start, end) of some interval; `after_start`: (start; `to_end`: end]."""
    index = np.searchsorted(a[0], at, side="left" if after_start else "right") - 1
    ends = a[1][np.maximum(index, 0)]
    return (index >= 0) & ((at <= ends) if to_end else (at < ends))


def clip(a: Intervals, low: int, high: int) -> Intervals:
    """Return the part of `a` inside [low, high]."""
    inside = (a[1] > low) & (a[0] < high)
    return np.maximum(a[0][inside], low), np.minimum(a[1][inside], high)


def length(a: Intervals) -> int:
    """Return covered time, ns."""
    return int((a[1] - a[0]).sum())


def covered_until(a: Intervals, at: Times) -> Times:
    """Return covered time of `a` left of each point of `at`, ns; `at` need not be sorted."""
    starts, ends = a
    if not len(starts):
        return np.zeros(len(at), np.int64)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
    index = np.searchsorted(starts, at, side="right")
    beyond = np.where(index > 0, np.maximum(0, ends[np.maximum(index - 1, 0)] - at), 0)
    return np.asarray(before[index] - beyond, np.int64)


def covered_within(a: Intervals, starts: Times, ends: Times) -> Times:
    """Return the covered time of `a` in each span [start, end), ns; the spans may be anywhere."""
    return covered_until(a, ends) - covered_until(a, starts)


def common_length(a: Intervals, b: Intervals) -> int:
    """Return time covered by both sets, ns."""
    return int(covered_within(b, *a).sum())


def build_covered_share(a: Intervals, low: int, high: int, bins: int) -> NDArray[np.float64]:
    """Return the covered share (0 to 1) of each of `bins` equal parts of [low, high], for drawing a timeline."""
    edges = low + np.arange(bins + 1, dtype=np.int64) * (high - low) // bins
    return np.diff(covered_until(a, edges)) / np.maximum(np.diff(edges), 1)


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
