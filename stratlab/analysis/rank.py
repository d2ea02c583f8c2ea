"""All that is computed from one rank's trace; the trace itself is dropped before the next is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratlab.analysis.breakdown import StepRow, build_rows
from stratlab.analysis.collectives import Calls, find_calls
from stratlab.analysis.lanes import Source, build_lanes
from stratlab.analysis.timeline import Activity, MemoryPoint, build_activity, build_memory_curve
from stratlab.traces.chunks import LIMITS, Limits, TraceError
from stratlab.traces.discover import Finding
from stratlab.traces.labels import PHASES, STEP, build_phase_labels, build_windows, find_phases
from stratlab.traces.trace import load_trace


@dataclass(frozen=True)
class RankAnalysis:
    """One rank: at least one row. `phases` are those that its trace labels."""

    rank: int
    file: Path
    source: Source
    backend: str | None
    rows: list[StepRow]
    phases: list[str]
    calls: list[Calls]
    activity: Activity
    memory: list[MemoryPoint]
    raw_bytes: int
    findings: list[Finding]


def analyse_rank(rank: int, file: Path, limits: Limits = LIMITS) -> RankAnalysis:
    """Loads one trace and takes it apart.

    Raises:
        TraceError: the trace cannot be decoded or holds no step.
    """
    trace = load_trace(file, limits)
    windows = build_windows(trace)
    lanes = build_lanes(trace, windows)
    phases = find_phases(trace)
    rows = build_rows(rank, lanes, windows, build_phase_labels(trace, windows))
    if not rows:
        raise TraceError("no GPU event was issued in any step")
    remarks = [f"has no label of the phase {phase}" for phase in PHASES if phase not in phases]
    if not trace.matches(STEP).any():
        remarks.append(
            "has no '## Training Step i ##', the steps are the profiler's own and count from its start"
        )
    if trace.left_out:
        remarks.append(f"{trace.left_out} events without a usable time are left out")
    if lanes.unlaunched:
        total = len(lanes.starts)
        remarks.append(
            f"{lanes.unlaunched} of {total} GPU events have no launch in it, they count by their start"
        )
    if len(rows) < len(windows):
        remarks.append(
            f"{len(windows) - len(rows)} of {len(windows)} steps ran nothing on the GPU and are left out"
        )
    return RankAnalysis(
        rank=rank,
        file=file,
        source=lanes.source,
        backend=trace.distributed.get("backend"),
        rows=rows,
        phases=phases,
        calls=find_calls(rank, lanes, windows),
        activity=build_activity(rank, lanes),
        memory=build_memory_curve(rank, trace.memory),
        raw_bytes=trace.raw_bytes,
        findings=[Finding("noted", remark, file.name, rank) for remark in remarks],
    )
