"""Compute everything from one rank's trace in two steps: on its own, and with the times at which the others were ready.

The trace itself is dropped in between; the kept part, also as a file, depends on the number of collectives, not of
events. The file is not a pickle, because it may be on a volume that other users write to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_origin

import msgspec
import numpy as np

from stratlab import UserError
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
    Gaps,
    IdleRow,
    MemoryPoint,
    PhaseRow,
    StepRow,
    build_gaps,
    build_idle,
    build_label_times,
    build_memory_curve,
    build_phase_rows,
    build_step_rows,
    find_labels,
)
from stratlab.analysis.time_breakdown import (
    DrawnStep,
    MeasuredTrace,
    States,
    build_drawn_step,
    build_exposure,
    build_measured,
    build_partition,
    build_segments,
    build_states,
    sum_parts,
)
from stratlab.traces.chunks import TraceError
from stratlab.traces.discover import TraceFinding
from stratlab.traces.trace import (
    PHASES,
    StepsFrom,
    Trace,
    Window,
    build_phase_labels,
    find_phases,
    find_steps,
    load_trace,
)
from stratlab_spec.trace_events import LAUNCH_CATEGORY, UNLINKED_CATEGORIES


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Facts of one rank's trace without the others. `phases` are its labelled ones."""

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
    memory: list[MemoryPoint]
    allocations: int | None
    device_name: str | None
    device_memory_gib: float | None
    of_ascend: bool
    has_stacks: bool
    unrecorded: int  # launches on a device whose activity was not recorded
    raw_bytes: int
    findings: list[TraceFinding]


@dataclass(frozen=True, kw_only=True)
class RankReading(RankFacts):
    """One rank, read; `labels` as in `build_label_times`, `states` as in `build_states`."""

    labels: dict[str, list[int]]
    measured: MeasuredTrace
    states: States
    origin_ns: int


@dataclass(frozen=True, kw_only=True)
class RankAnalysis(RankFacts):
    """One rank, finished: at least one row; `parts_ns` as in `sum_parts`; `drawn` None = it lacks the drawn step."""

    rows: list[StepRow]
    phase_rows: list[PhaseRow]
    parts_ns: dict[tuple[str, str, str], int]
    collectives: list[CollectiveRow]
    drawn: DrawnStep | None


def read_rank_trace(rank: int, file: Path, axes: Mapping[str, int] | None = None) -> RankReading:
    """Load one trace and divide it."""
    trace = load_trace(file, operators=False)
    steps_from, windows = find_steps(trace)
    _refuse_merged(windows)
    lanes, on_gpu = build_lanes(trace), len(trace.gpu) > 0
    labels = build_phase_labels(trace, windows)
    segments = build_segments(lanes, windows, labels)
    if not segments.windows:
        why = "no GPU event was issued in any step [SL-steps-no-gpu-event]"
        raise TraceError(why if on_gpu else "no step ran anything [SL-steps-empty]")
    calls = find_calls(rank, trace, lanes, segments.hosts, dict(axes or {}))
    numbers = [windows.index(host) for host in segments.hosts]
    backend, device = trace.distributed.get("backend"), _read_device(trace)
    name, size = device.get("name"), device.get("totalGlobalMem")
    runtimes = tuple(category for category in trace.categories if LAUNCH_CATEGORY.search(category))
    known: dict[str, Any] = {
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
        "idle": build_idle(rank, trace, lanes),
        "memory": build_memory_curve(rank, trace.memory),
        "allocations": _count_allocations(trace, windows),
        "device_name": name if isinstance(name, str) else None,
        "device_memory_gib": size / 2**30 if isinstance(size, int) and 0 < size < 1 << 60 else None,
        "of_ascend": trace.of_ascend,
        "has_stacks": trace.has_stacks,
        "unrecorded": 0 if on_gpu else int((trace.in_category(runtimes) & trace.matches(LAUNCHING)).sum()),
        "raw_bytes": trace.raw_bytes,
    }
    remarks = _describe(trace, lanes, known["phases"], known["unrecorded"], steps_from)
    if lost := len(windows) - len(segments.windows):
        remarks.append(
            f"{lost} of {len(windows)} steps ran nothing on the GPU and are left out [SL-steps-without-gpu]"
        )
    named = find_labels(trace) if on_gpu else {}
    del trace  # the next step needs as much memory again
    low, high = segments.windows[0].start_ns, segments.windows[-1].end_ns
    exposure = build_exposure(lanes, calls, labels.get("data", []), low, high)
    return RankReading(
        **known,
        findings=[TraceFinding("noted", text, file.name, rank) for text in remarks],
        gaps=build_gaps(exposure.sets, segments.windows, named) if on_gpu else Gaps(),
        states=build_states(exposure.sets, segments.windows),
        measured=build_measured(segments, exposure, calls),
    )


def finish_rank(
    reading: RankReading, matches: Mapping[CallKind, Match], is_pipeline: bool, drawn_step: int | None = None
) -> RankAnalysis:
    """Return the finished rank with facts that need the calls of all ranks. `drawn_step`: of `choose_step`."""
    partition = build_partition(reading.measured, matches, is_pipeline)
    segments, labels = reading.measured.segments, reading.labels
    parts = sum_parts(partition)
    if "data" not in reading.phases:  # not known, which is not zero
        del parts["data", "", ""]
    return RankAnalysis(
        **{field.name: getattr(reading, field.name) for field in fields(RankFacts)},
        parts_ns=parts,
        rows=build_step_rows(reading.rank, reading.source, segments, partition, labels),
        phase_rows=build_phase_rows(reading.rank, segments, partition, labels),
        collectives=build_collectives(reading.measured.calls, partition, matches),
        drawn=build_drawn_step(
            reading.measured, reading.states, drawn_step, reading.origin_ns, matches, is_pipeline
        ),
    )


def _refuse_merged(windows: list[Window]) -> None:
    """Reject overlapping steps of one number: another program has merged the traces of several processes."""
    ends: dict[int, int] = {}
    for window in windows:
        if window.start_ns < ends.get(window.step, window.start_ns):
            raise TraceError(
                f"holds step {window.step} several times at once, as merged traces do; give one trace per rank "
                "[SL-step-at-once]"
            )
        ends[window.step] = window.end_ns


def _count_doubled(trace: Trace) -> int:
    """Return the number of GPU events that are repeated in the trace."""
    if not len(trace.gpu):
        return 0
    order = np.argsort(trace.ts[trace.gpu], kind="stable")
    follows = np.append(False, np.diff(trace.ts[trace.gpu[order]]) == 0)
    chosen = order[follows | np.append(follows[1:], False)]  # began together: only they can be equal
    if not len(chosen):
        return 0
    gpu = trace.gpu[chosen]
    correlation = trace.linked_correlation[np.searchsorted(trace.linked, gpu)]
    own = trace.device[chosen], trace.stream[chosen]
    keys = np.stack([trace.ts[gpu], trace.end[gpu], trace.name[gpu], *own, correlation])
    return len(gpu) - np.unique(keys, axis=1).shape[1]


def _count_allocations(trace: Trace, windows: list[Window]) -> int | None:
    """Return the allocator's events in the steps, None if memory was not recorded."""
    if not len(trace.memory.ts):
        return None
    at = np.sort(trace.memory.ts)
    return sum(int(np.diff(np.searchsorted(at, [w.start_ns, w.end_ns]))[0]) for w in windows)


def _read_device(trace: Trace) -> dict[str, Any]:
    """Return the first device in the trace's head; empty without one, or if none was used."""
    devices = trace.head.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and len(trace.gpu) else None
    return first if isinstance(first, dict) else {}


LAUNCHING = re.compile(r"launch|submit", re.IGNORECASE)
KNOWN_CATEGORIES = {*UNLINKED_CATEGORIES, "overhead", "cuda_sync"}  # and runtimes
STEPS_FROM: dict[StepsFrom, str] = {
    "labels": "",
    "profiler": "has no '## Training Step i ##', the steps are the profiler's own and count from its start "
    "[SL-steps-of-profiler]",
    "recording": "has neither '## Training Step i ##' nor 'ProfilerStep#i', the whole recording counts as one "
    "step [SL-steps-of-recording]",
}


def _describe(
    trace: Trace, lanes: Lanes, phases: Sequence[str], unrecorded: int, steps_from: StepsFrom
) -> list[str]:
    """Describe the trace's limits for a reader of its numbers."""
    doubled, total = _count_doubled(trace), len(lanes.starts)
    unknown = [name for name in trace.categories if not LAUNCH_CATEGORY.search(name)]
    other = sorted({*unknown} - KNOWN_CATEGORIES)
    unread = f", and events of {', '.join(other[:3])}, which are not read" if other else ""
    remarks: list[tuple[object, str]] = [
        *(
            (phase not in phases, f"has no label of the phase {phase} [SL-phase-no-label]")
            for phase in PHASES
        ),
        (STEPS_FROM[steps_from], STEPS_FROM[steps_from]),
        (
            trace.of_ascend,
            "is of Ascend's profiler: tasks that wait or keep order do not count as work, collectives are HCCL's "
            "[SL-trace-of-ascend]",
        ),
        (
            trace.odd.values,
            f"{trace.odd.values} values that are not JSON (NaN, half a character, ...) count as unknown "
            "[SL-values-odd]",
        ),
        (
            trace.odd.events,
            f"{trace.odd.events} events with a field of another type are left out [SL-events-odd]",
        ),
        (trace.left_out, f"{trace.left_out} events without a usable time are left out [SL-events-untimed]"),
        (
            doubled,
            f"{doubled} GPU events are in it twice: their number and sums are too large, not the steps "
            "[SL-events-doubled]",
        ),
        (
            unrecorded,
            f"holds {unrecorded} launches on a device and no kernels{unread}. Its activity was not recorded, the times "
            "are the host's; torch.profiler records it with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] "
            "(XPU, MTIA, PrivateUse1), if no other profiler holds the device [SL-launches-unrecorded]",
        ),
        (
            lanes.in_flight,
            f"{lanes.in_flight} of {total} GPU events were launched before the recording began, they count in no step "
            "[SL-events-in-flight]",
        ),
        (
            lanes.unlaunched,
            f"{lanes.unlaunched} of {total} GPU events have no launch in it, they count by their start "
            "[SL-events-unlaunched]",
        ),
    ]
    return [text for holds, text in remarks if holds]


def write_reading(reading: RankReading, path: Path) -> None:
    """Write it exactly: whole numbers, floats and arrays are restored bit by bit."""
    path.write_bytes(msgspec.msgpack.encode(reading, enc_hook=_encode))


def load_reading(path: Path) -> RankReading:
    """Return the content of `write_reading`.

    Raises:
        UserError: the file holds something else.
    """
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=RankReading, dec_hook=_decode)
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
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()  # a writable copy
    raise NotImplementedError(f"{kind} in a reading")
