"""Traces of real GPUs: equal to Holistic Trace Analysis where that is right, and to a naive second computation."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratlab.analysis.dividing.lanes import Lanes, build_lanes
from stratlab.analysis.measuring.idle import build_idle
from stratlab.analysis.measuring.kernels import build_kernels
from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.measuring.step_rows import StepRow
from stratlab.traces.intervals import common_length, length
from stratlab.traces.labels import find_steps
from stratlab.traces.trace import Mask, Trace, load_trace
from tests.stratlab.analysis.hta.loading import build_idle_of_hta, build_kernels_of_hta, load_hta, unrounded
from tests.stratlab.by_hand import Step, take_apart
from tests.stratlab.real_traces import NAMES, unpack

pytestmark = pytest.mark.filterwarnings("ignore")  # HTA on pandas 2
os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Case:
    """The same files, read by both. `seen`: which GPU events HTA looks at."""

    name: str
    files: dict[int, Path]
    hta: Any
    traces: dict[int, Trace]
    lanes: dict[int, Lanes]
    seen: dict[int, Mask]


def find_seen(trace: Trace, lanes: Lanes) -> Mask:
    """Of several steps those whose launch is in the trace and not after the last step, of a single step all."""
    _, steps = find_steps(trace)
    if len(steps) == 1:
        return np.ones(len(lanes.starts), bool)
    return (lanes.issued >= 0) & (lanes.issued <= max(step.end_ns for step in steps))


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    files = unpack(request.param, tmp_path_factory.mktemp(request.param))
    traces = {rank: load_trace(path) for rank, path in files.items()}
    lanes = {rank: build_lanes(trace) for rank, trace in traces.items()}
    seen = {rank: find_seen(traces[rank], lanes[rank]) for rank in files}
    return Case(request.param, files, load_hta(files), traces, lanes, seen)


def same(value: float) -> Any:
    """1e-6 of it, or 5 ns: months after its base a float64 of us, which HTA has, is off by up to 0.5 ns per border."""
    return pytest.approx(value, rel=1e-6, abs=5e-3)


def as_step(row: StepRow) -> Step:
    times = (row.step_ms, row.compute_ms, row.comm_exposed_ms, row.copy_exposed_ms, row.idle_ms)
    return Step(row.step, *(round(ms * 1e6) for ms in times))


def test_steps_by_hand(case: Case) -> None:
    measures = measure_traces(case.files, processes=1)
    assert measures.findings == []
    for rank in measures.ranks:
        assert [as_step(row) for row in rank.rows] == take_apart(case.files[rank.rank])


WRONG = {"event_sync_a100": "row 8: its waits are work", "triton_a100": "row 4: its operator is work"}


def test_temporal_breakdown(case: Case) -> None:
    if case.name in WRONG:
        return
    theirs = {row["rank"]: row for row in case.hta.get_temporal_breakdown(visualize=False).to_dict("records")}
    for rank, lanes in case.lanes.items():
        busy, compute = lanes.union(case.seen[rank]), lanes.union(case.seen[rank] & lanes.is_compute)
        whole = int(busy[1][-1] - busy[0][0])
        assert whole / 1e3 == same(theirs[rank]["kernel_time(us)"])
        assert length(compute) / 1e3 == same(theirs[rank]["compute_time(us)"])
        assert (whole - length(busy)) / 1e3 == same(theirs[rank]["idle_time(us)"])


def test_overlap(case: Case) -> None:
    with unrounded():
        frame = case.hta.get_comm_comp_overlap(visualize=False)
    theirs = dict(zip(frame["rank"], frame["comp_comm_overlap_pctg"], strict=True))
    for rank, lanes in case.lanes.items():
        compute = lanes.union(case.seen[rank] & lanes.is_compute)
        communication = lanes.union(case.seen[rank] & lanes.is_communication)
        if not length(communication):
            assert np.isnan(theirs[rank])  # row 9
            continue
        assert 100 * common_length(compute, communication) / length(communication) == same(theirs[rank])


def test_kernels(case: Case) -> None:
    """Number and summed duration of every name; ours are over the whole recording, so only where HTA's are."""
    theirs = build_kernels_of_hta(case.hta) if case.name != "triton_a100" else {}
    for rank, trace in case.traces.items():
        if not case.seen[rank].all() or not theirs:
            continue
        ours = {row.name: row.sum_ms * 1e3 for row in build_kernels(rank, trace, case.lanes[rank])}
        assert ours == {name: same(row["sum (us)"]) for (of, name), row in theirs.items() if of == rank}


def test_idle_categories(case: Case) -> None:
    """Only where every launch is in the trace (row 10)."""
    for rank, trace in case.traces.items():
        lanes = case.lanes[rank]
        if not case.seen[rank].all() or lanes.in_flight or lanes.unlaunched:
            continue
        theirs = build_idle_of_hta(case.hta, [rank])
        for row in build_idle(rank, trace):
            parts = {"host_wait": row.host_wait_ms, "kernel_wait": row.kernel_wait_ms, "other": row.other_ms}
            for category, ms in parts.items():
                their = theirs.get((rank, row.stream, category), 0.0)  # a sum over thousands of borders
                assert ms * 1e3 == pytest.approx(their, rel=1e-5, abs=5e-3), (row.stream, category)
