"""What ran when: compute, communication and copies of one rank, on its GPU or, without one, on the host.

GPU: a kernel is communication by its name, a copy by its category. It belongs to the step in whose label its
launch lies (kernel -> launch by correlation id); the label decides, not the thread, so kernels launched by
autograd threads count too.
CPU: operators; communication is what the backends write as `gloo:all_reduce` and the like. This is host operator
time and says nothing about a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stratlab.traces.intervals import Intervals, Times, build_union
from stratlab.traces.labels import PROFILER_STEP, STEP, Window
from stratlab.traces.trace import COPY_CATEGORIES, LABEL_CATEGORIES, LAUNCH_CATEGORIES, Mask, Trace

Source = Literal["gpu", "cpu"]

# As in HTA. A library with kernels of its own (DeepEP, NVSHMEM, custom all-reduce) counts as compute.
COMMUNICATION_KERNEL = re.compile(r"^(nccl|rccl|hccl)|ncclKernel")
COMMUNICATION_LABEL = re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):")
# Not computation: entering a collective, and autograd's wrappers, whose own time is hooks that wait for one
# (FSDP waits inside RegisterPostBackwardFunctionBackward).
NO_COMPUTE_OP = re.compile(
    r"^(c10d::|_c10d|record_param_comms|autograd::engine|torch::autograd::)|Backward\d*$"
)


@dataclass(frozen=True)
class Lanes:
    """Events and their kinds, and the steps on the time line on which the events ran. Times in us."""

    source: Source
    windows: list[Window | None]  # one per step of the host; None = nothing of it ran on the GPU
    starts: Times
    ends: Times
    issued: Times  # when the host launched the event; on the host itself, its start
    is_compute: Mask
    is_communication: Mask
    names: list[str]
    name: NDArray[np.int32]
    unlaunched: int  # GPU events without a launch in the trace; they count by their own start

    def union(self, mask: Mask | slice = slice(None)) -> Intervals:
        """Time covered by the chosen events."""
        return build_union(self.starts[mask], self.ends[mask])


def build_lanes(trace: Trace, windows: list[Window]) -> Lanes:
    """GPU lanes if the trace holds any GPU event, else the host's."""
    gpu = trace.gpu
    return _build_gpu_lanes(trace, windows, gpu) if len(gpu) else _build_cpu_lanes(trace, windows)


def _build_gpu_lanes(trace: Trace, windows: list[Window], gpu: NDArray[np.int64]) -> Lanes:
    starts, ends = trace.ts[gpu], trace.end[gpu]
    launched = _find_launches(trace, gpu)
    issued = np.where(launched >= 0, launched, starts)
    is_communication = trace.matches(COMMUNICATION_KERNEL)[gpu]
    return Lanes(
        source="gpu",
        windows=_build_gpu_windows(windows, ends, issued),
        starts=starts,
        ends=ends,
        issued=issued,
        is_compute=~is_communication & ~trace.in_category(COPY_CATEGORIES)[gpu],
        is_communication=is_communication,
        names=trace.names,
        name=trace.name[gpu],
        unlaunched=int((launched < 0).sum()),
    )


def _find_launches(trace: Trace, gpu: NDArray[np.int64]) -> Times:
    """Host time of the launch of each GPU event, us; -1 where the trace does not hold it."""
    launches = np.flatnonzero(trace.in_category(LAUNCH_CATEGORIES) & (trace.correlation > 0))
    if not len(launches):
        return np.full(len(gpu), -1.0)
    launches = launches[np.argsort(trace.correlation[launches], kind="stable")]
    ids = trace.correlation[launches]
    at = np.minimum(np.searchsorted(ids, trace.correlation[gpu]), len(ids) - 1)
    return np.where(ids[at] == trace.correlation[gpu], trace.ts[launches][at], -1.0)


def _build_gpu_windows(windows: list[Window], ends: Times, issued: Times) -> list[Window | None]:
    """A step on the GPU: from when the host has begun it and the GPU has ended everything issued before,
    until the host has ended it and the GPU has ended everything issued in it. Such steps never overlap, and
    waiting for the host, as for data, stays in the step.
    """
    steps: list[Window | None] = []
    for window in windows:
        before = ends[issued < window.start_us]
        own = ends[(issued >= window.start_us) & (issued < window.end_us)]
        start = max(window.start_us, float(before.max(initial=-np.inf)))
        end = max(window.end_us, float(own.max(initial=-np.inf)))
        steps.append(Window(window.step, start, end) if len(own) and start < end else None)
    return steps


def _build_cpu_lanes(trace: Trace, windows: list[Window]) -> Lanes:
    label = trace.in_category(LABEL_CATEGORIES)
    communicates = label & trace.matches(COMMUNICATION_LABEL)
    main = trace.thread[label & (trace.matches(STEP) | trace.matches(PROFILER_STEP))]
    backend_threads = np.setdiff1d(trace.thread[communicates], main)
    computes = trace.in_category(("cpu_op",)) & ~trace.matches(NO_COMPUTE_OP)
    computes &= ~np.isin(trace.thread, backend_threads)
    used = np.flatnonzero(communicates | computes)
    return Lanes(
        source="cpu",
        windows=list(windows),
        starts=trace.ts[used],
        ends=trace.end[used],
        issued=trace.ts[used],
        is_compute=computes[used],
        is_communication=communicates[used],
        names=trace.names,
        name=trace.name[used],
        unlaunched=0,
    )
