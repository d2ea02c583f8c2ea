"""Names of torch.profiler's events: the trainer's labels, collectives, launches; and interval arithmetic for their
times.

The trainer counts its exposed communication by these rules, the analysis divides the same time with them.

A set of times is a pair of int64 arrays (starts, ends) in whole nanoseconds, so that every sum is exact.
`build_union` makes a set sorted and disjoint; the other functions expect and return such sets.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

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
