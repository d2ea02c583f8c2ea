"""What a rank's trace holds, as rows; and all ranks of a run.

All that is computed from one rank's trace, in two goes: alone, and then knowing when the others were ready.

The trace itself is dropped in between; what is kept depends on the number of collectives, not of events.

What was read of one rank as a file. No pickle: it may lie on a volume that others write to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_origin

import msgspec
import numpy as np

from stratlab.analysis.collective_calls import CallKind, Match, find_calls
from stratlab.analysis.kernels import (
    CollectiveRow,
    CopyRow,
    Durations,
    KernelRow,
    build_collectives,
    build_copies,
    build_durations,
    build_kernels,
)
from stratlab.analysis.lanes import Lanes, Source, build_lanes
from stratlab.analysis.step_rows import (
    Activity,
    Gaps,
    IdleRow,
    MemoryPoint,
    PhaseRow,
    StepRow,
    build_activity,
    build_gaps,
    build_idle,
    build_label_times,
    build_memory_curve,
    build_phase_rows,
    build_step_rows,
    find_labels,
)
from stratlab.analysis.time_breakdown import (
    Measured,
    Segments,
    build_exposure,
    build_measured,
    build_partition,
    build_segments,
    sum_parts,
)
from stratlab.traces.chunks import LIMITS, Limits, TraceError
from stratlab.traces.discover import Finding
from stratlab.traces.trace import (
    PHASES,
    Intervals,
    StepsFrom,
    Trace,
    Window,
    build_empty,
    build_phase_labels,
    find_phases,
    find_steps,
    load_trace,
)
from stratlab.user_error import UserError
from stratlab_spec.trace_events import LAUNCH_CATEGORY, UNLINKED_CATEGORIES


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What one rank's trace says without the others. `phases` are those that it labels."""

    rank: int
    file: Path
    source: Source
    steps_from: StepsFrom
    backend: str | None
    host: str | None
    phases: list[str]
    kernels: list[KernelRow]
    durations: Durations
    copies: list[CopyRow]
    idle: list[IdleRow]
    gaps: Gaps
    activity: Activity
    memory: list[MemoryPoint]
    allocations: int | None
    device_name: str | None
    device_memory_gib: float | None
    of_ascend: bool
    unrecorded: int  # launches on a device of whose activity nothing was recorded
    raw_bytes: int
    findings: list[Finding]


@dataclass(frozen=True, kw_only=True)
class Reading(RankFacts):
    """One rank, read; `labels` as in `build_label_times`."""

    labels: dict[str, list[int]]
    measured: Measured
    origin_ns: int


@dataclass(frozen=True, kw_only=True)
class RankAnalysis(RankFacts):
    """One rank, finished: at least one row; `parts_ns` as in `sum_parts`."""

    rows: list[StepRow]
    phase_rows: list[PhaseRow]
    parts_ns: dict[tuple[str, str, str], int]
    collectives: list[CollectiveRow]


def read_rank_trace(
    rank: int, file: Path, axes: Mapping[str, int] | None = None, limits: Limits = LIMITS
) -> Reading:
    """Loads one trace and takes it apart.

    Raises:
        TraceError: the trace cannot be decoded, or nothing ran in any of its steps.
    """
    trace = load_trace(file, limits, operators=False)
    steps_from, windows = find_steps(trace)
    _refuse_merged(windows)
    lanes = build_lanes(trace)
    labels = build_phase_labels(trace, windows)
    segments = build_segments(lanes, windows, labels)
    if not segments.windows:
        raise TraceError(
            "no GPU event was issued in any step [SL-steps-no-gpu-event]"
            if lanes.source == "gpu"
            else "no step ran anything [SL-steps-empty]"
        )
    calls = find_calls(rank, trace, lanes, segments.hosts, dict(axes or {}))
    numbers = [windows.index(host) for host in segments.hosts]
    backend = trace.distributed.get("backend")
    told: dict[str, Any] = {
        "rank": rank,
        "file": file,
        "source": lanes.source,
        "steps_from": steps_from,
        "backend": backend if isinstance(backend, str) else None,
        "host": str(trace.head["host_name"]) if "host_name" in trace.head else None,
        "phases": find_phases(trace),
        "labels": build_label_times(lanes, segments, numbers, labels),
        "origin_ns": trace.origin_ns,
        "kernels": build_kernels(rank, trace, lanes),
        "durations": build_durations(trace, lanes),
        "copies": build_copies(rank, trace),
        "idle": build_idle(rank, trace),
        "memory": build_memory_curve(rank, trace.memory),
        "allocations": _count_allocations(trace, windows),
        "device_name": _read_device_name(trace),
        "device_memory_gib": _read_device_memory(trace),
        "of_ascend": trace.of_ascend,
        "unrecorded": _count_unrecorded(trace),
        "raw_bytes": trace.raw_bytes,
        "findings": [
            Finding("noted", text, file.name, rank)
            for text in _describe(trace, lanes, segments, windows, steps_from)
        ],
    }
    named = find_labels(trace) if lanes.source == "gpu" else {}
    del trace  # what follows needs as much memory again
    low, high = segments.windows[0].start_ns, segments.windows[-1].end_ns
    exposure = build_exposure(lanes, calls, _join_labels(labels.get("data")), low, high)
    return Reading(
        **told,
        gaps=build_gaps(exposure.sets, segments.windows, named) if lanes.source == "gpu" else Gaps(),
        activity=build_activity(rank, exposure.sets, low, high),
        measured=build_measured(segments, exposure, calls),
    )


def finish_rank(reading: Reading, matches: Mapping[CallKind, Match], is_pipeline: bool) -> RankAnalysis:
    """The rest, which needs the calls of all ranks."""
    partition = build_partition(reading.measured, matches, is_pipeline)
    segments = reading.measured.segments
    parts = sum_parts(partition)
    if "data" not in reading.phases:  # not known, which is not zero
        del parts["data", "", ""]
    return RankAnalysis(
        **{field.name: getattr(reading, field.name) for field in fields(RankFacts)},
        parts_ns=parts,
        rows=build_step_rows(reading.rank, reading.source, segments, partition, reading.labels),
        phase_rows=build_phase_rows(reading.rank, segments, partition, reading.labels),
        collectives=build_collectives(reading.measured.calls, partition, matches),
    )


def _refuse_merged(windows: list[Window]) -> None:
    """Steps of one number that overlap are of several processes: another program has put their traces together."""
    ends: dict[int, int] = {}
    for window in windows:
        if window.step in ends and window.start_ns < ends[window.step]:
            raise TraceError(
                f"holds step {window.step} several times at once, as merged traces do; give one trace per rank "
                "[SL-step-at-once]"
            )
        ends[window.step] = window.end_ns


def _count_unrecorded(trace: Trace) -> int:
    if len(trace.gpu):
        return 0
    runtimes = [name for name in trace.categories if LAUNCH_CATEGORY.search(name)]
    launching = trace.in_category(tuple(runtimes)) & trace.matches(LAUNCHING)
    return int(launching.sum())


def _count_doubled(trace: Trace) -> int:
    """GPU events that are in the trace more than once, without the first of each."""
    gpu = trace.gpu
    correlation = trace.linked_correlation[np.searchsorted(trace.linked, gpu)]
    keys = np.stack([trace.ts[gpu], trace.end[gpu], trace.name[gpu], trace.device, trace.stream, correlation])
    return len(gpu) - np.unique(keys, axis=1).shape[1] if len(gpu) else 0


def _join_labels(steps: list[Intervals] | None) -> Intervals:
    if not steps:
        return build_empty()
    return np.concatenate([s for s, _ in steps]), np.concatenate([e for _, e in steps])


def _count_allocations(trace: Trace, windows: list[Window]) -> int | None:
    """The allocator's events in the steps, None where memory was not recorded."""
    if not len(trace.memory.ts):
        return None
    at = np.sort(trace.memory.ts)
    return sum(int(np.diff(np.searchsorted(at, [w.start_ns, w.end_ns]))[0]) for w in windows)


def _read_device(trace: Trace) -> dict[str, Any]:
    devices = trace.head.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return first if isinstance(first, dict) else {}


def _read_device_name(trace: Trace) -> str | None:
    """Of the same."""
    name = _read_device(trace).get("name")
    return name if isinstance(name, str) and len(trace.gpu) else None


def _read_device_memory(trace: Trace) -> float | None:
    """Of the first device that the trace's head names; None where none is told or none was used."""
    size = _read_device(trace).get("totalGlobalMem")
    return size / 2**30 if isinstance(size, int) and 0 < size < 1 << 60 and len(trace.gpu) else None


LAUNCHING = re.compile(r"launch|submit", re.IGNORECASE)
KNOWN_CATEGORIES = {*UNLINKED_CATEGORIES, "overhead", "cuda_sync"}  # and runtimes
STEPS_FROM: dict[StepsFrom, str] = {
    "profiler": "has no '## Training Step i ##', the steps are the profiler's own and count from its start "
    "[SL-steps-of-profiler]",
    "recording": "has neither '## Training Step i ##' nor 'ProfilerStep#i', the whole recording counts as one "
    "step [SL-steps-of-recording]",
}


def _describe(
    trace: Trace, lanes: Lanes, segments: Segments, windows: list[Window], steps_from: StepsFrom
) -> list[str]:
    present = find_phases(trace)
    remarks = [
        f"has no label of the phase {phase} [SL-phase-no-label]" for phase in PHASES if phase not in present
    ]
    if steps_from in STEPS_FROM:
        remarks.append(STEPS_FROM[steps_from])
    if trace.of_ascend:
        remarks.append(
            "is of Ascend's profiler: tasks that wait or keep order are no work, collectives are those of HCCL "
            "[SL-trace-of-ascend]"
        )
    if trace.odd.values:
        remarks.append(
            f"{trace.odd.values} values that are no JSON (NaN, half a character, ...) count as unknown [SL-values-odd]"
        )
    if trace.odd.events:
        remarks.append(f"{trace.odd.events} events with a field of another type are left out [SL-events-odd]")
    if trace.left_out:
        remarks.append(f"{trace.left_out} events without a usable time are left out [SL-events-untimed]")
    if doubled := _count_doubled(trace):
        remarks.append(
            f"{doubled} GPU events are in it twice: their number and sums are too large, not the steps "
            "[SL-events-doubled]"
        )
    if unrecorded := _count_unrecorded(trace):
        named = set(trace.categories) - KNOWN_CATEGORIES
        other = sorted(name for name in named if not LAUNCH_CATEGORY.search(name))
        unread = f", and events of {', '.join(other[:3])}, which are not read" if other else ""
        remarks.append(
            f"holds {unrecorded} launches on a device and no kernels{unread}: its activity was not recorded, the times "
            "are the host's; torch.profiler records it with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] "
            "(XPU, MTIA, PrivateUse1), if no other profiler holds the device [SL-launches-unrecorded]"
        )
    total = len(lanes.starts)
    if lanes.in_flight:
        remarks.append(
            f"{lanes.in_flight} of {total} GPU events were launched before the recording began, they count in no step "
            "[SL-events-in-flight]"
        )
    if lanes.unlaunched:
        remarks.append(
            f"{lanes.unlaunched} of {total} GPU events have no launch in it, they count by their start "
            "[SL-events-unlaunched]"
        )
    if len(segments.windows) < len(windows):
        missing = len(windows) - len(segments.windows)
        remarks.append(
            f"{missing} of {len(windows)} steps ran nothing on the GPU and are left out [SL-steps-without-gpu]"
        )
    return remarks


def write_reading(reading: Reading, path: Path) -> None:
    """Exactly: whole numbers, floats and arrays come back bit by bit."""
    path.write_bytes(msgspec.msgpack.encode(reading, enc_hook=_encode))


def load_reading(path: Path) -> Reading:
    """What `write_reading` has written.

    Raises:
        UserError: the file holds something else.
    """
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Reading, dec_hook=_decode)
    except (msgspec.DecodeError, TypeError, ValueError) as failure:
        raise UserError(
            f"{path}: no reading of this version, read the share again ({failure}) [SL-reading-other-version]"
        ) from failure


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} in a reading")


def _decode(kind: Any, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    if (get_origin(kind) or kind) is np.ndarray:
        dtype, shape, data = value
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()  # one's own, and writable
    raise NotImplementedError(f"{kind} in a reading")
