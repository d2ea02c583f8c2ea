"""Our numbers and those of Holistic Trace Analysis (traceinsight) on the same GPU traces: identical to 1e-6."""

from dataclasses import replace

import pytest

from stratlab.analysis.kernels import build_copies, build_kernels
from stratlab.analysis.lanes import build_lanes
from stratlab.analysis.step_rows import build_idle
from stratlab.traces.trace import load_trace
from stratlab_spec.trace_events import common_length, length
from tests.stratlab.analysis.hta.loading import build_idle_of_hta, build_kernels_of_hta, load_hta, unrounded
from tests.stratlab.real_traces import unpack
from tests.stratlab.simulated.scene import Scene
from tests.stratlab.simulated.team import simulate

ORIGIN_NS = 1_000_000_000  # there a float64 of microseconds, which is what HTA has, tells every nanosecond
SCENES = {
    "host-bound": Scene(launch_ns=90_000, seed=5),
    "pipeline": Scene(ranks=4, axes=(("pp", 2), ("dp_replicate", 2)), micro_batches=4, layers=8),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # HTA on pandas 2


def same(value):
    """1e-6 of it, or 1e-6 of the unit (us, percent)."""
    return pytest.approx(value, rel=1e-6, abs=1e-6)


@pytest.fixture(scope="module", params=[*SCENES, "nccl_a100"])
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in SCENES:
        files = simulate(folder, replace(SCENES[request.param], origin_ns=ORIGIN_NS)).files
    else:
        files = unpack(request.param, folder)
    traces = {rank: load_trace(path) for rank, path in files.items()}
    return load_hta(files), traces, {rank: build_lanes(trace) for rank, trace in traces.items()}


def test_temporal_breakdown_and_overlap(case):
    hta, traces, lanes = case
    theirs = {row["rank"]: row for row in hta.get_temporal_breakdown(visualize=False).to_dict("records")}
    with unrounded():
        frame = hta.get_comm_comp_overlap(visualize=False)
    overlaps = dict(zip(frame["rank"], frame["comp_comm_overlap_pctg"], strict=True))
    assert list(theirs) == list(traces)
    for rank, mine in lanes.items():
        busy, compute, talks = mine.union(), mine.union(mine.is_compute), mine.union(mine.is_communication)
        whole = int(busy[1][-1] - busy[0][0])
        assert whole / 1e3 == same(theirs[rank]["kernel_time(us)"])
        assert length(compute) / 1e3 == same(theirs[rank]["compute_time(us)"])
        assert (whole - length(busy)) / 1e3 == same(theirs[rank]["idle_time(us)"])
        assert 100 * common_length(compute, talks) / length(talks) == same(overlaps[rank])


def test_kernels_and_copies(case):
    hta, traces, lanes = case
    theirs = build_kernels_of_hta(hta)
    types = {"compute": "COMPUTATION", "comm": "COMMUNICATION", "copy": "MEMORY"}
    ours = {(r, row.name): row for r, t in traces.items() for row in build_kernels(r, t, lanes[r])}
    assert set(ours) == set(theirs)
    for key, row in ours.items():
        their = theirs[key]
        assert types[row.type] == their["kernel_type"] and row.sum_ms * 1e3 == same(their["sum (us)"])
        assert (row.mean_us, row.max_us) == (same(their["mean (us)"]), same(their["max (us)"]))
    for rank, trace in traces.items():
        assert sum(row.pct for (of, _), row in ours.items() if of == rank) == pytest.approx(100)
        copied = sum(
            t["sum (us)"] for (r, _), t in theirs.items() if r == rank and t["kernel_type"] == "MEMORY"
        )
        assert sum(row.total_ms for row in build_copies(rank, trace)) * 1e3 == same(copied)


def test_idle_categories(case):
    hta, traces, lanes = case
    if any(mine.in_flight or mine.unlaunched for mine in lanes.values()):
        return  # row 10 of docs/decisions/hta.md
    theirs = build_idle_of_hta(hta, list(traces))
    ours = {
        (rank, row.stream, category): 1e3 * ms
        for rank, trace in traces.items()
        for row in build_idle(rank, trace, lanes[rank])
        for category, ms in zip(
            ("host_wait", "kernel_wait", "other"),
            (row.host_wait_ms, row.kernel_wait_ms, row.other_ms),
            strict=True,
        )
    }
    assert {key[:2] for key in ours} == {key[:2] for key in theirs}
    for key, idle_us in ours.items():
        assert idle_us == pytest.approx(theirs.get(key, 0.0), rel=1e-5, abs=5e-3), key
