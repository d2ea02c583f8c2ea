"""Our numbers and those of Holistic Trace Analysis (traceinsight) on the same GPU traces: identical to 1e-6."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from stratlab.analysis.dividing.lanes import Lanes, build_lanes
from stratlab.analysis.measuring.bandwidth import build_copies
from stratlab.analysis.measuring.idle import build_idle
from stratlab.analysis.measuring.kernels import build_kernels
from stratlab.traces.intervals import common_length, length
from stratlab.traces.trace import Trace, load_trace
from tests.stratlab.analysis.hta.loading import (
    build_idle_of_hta,
    build_kernels_of_hta,
    load_hta,
    unrounded,
)
from tests.stratlab.simulated.random_streams import build_random_trace
from tests.stratlab.simulated.team import Scene, simulate

ORIGIN_NS = (
    1_000_000_000  # 1 s: there a float64 of microseconds, which is what HTA has, tells every nanosecond
)
SCENES = {
    "ddp": Scene(slow=1.3),
    "queue": Scene(sync=False, copy_exposed=False, micro_batches=2, gaps_ns=(0, 20, 900, 45_000)),
    "host-bound": Scene(launch_ns=90_000, seed=5),
    "hsdp": Scene(ranks=4, strategy="fsdp", axes=(("dp_replicate", 2), ("dp_shard", 2)), overlap=0.5),
    "pipeline": Scene(ranks=4, axes=(("pp", 2), ("dp_replicate", 2)), micro_batches=4, layers=8),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # HTA on pandas 2

CASES = [*SCENES, "random"]


@dataclass(frozen=True)
class Case:
    """The same files, read by both."""

    hta: Any
    traces: dict[int, Trace]
    lanes: dict[int, Lanes]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "random":
        files = {rank: build_random_trace(rank).write(folder / f"rank{rank}_trace.json") for rank in range(4)}
    else:
        files = simulate(folder, replace(SCENES[request.param], origin_ns=ORIGIN_NS)).files
    traces = {rank: load_trace(path) for rank, path in files.items()}
    return Case(load_hta(files), traces, {rank: build_lanes(trace) for rank, trace in traces.items()})


def same(value: float) -> Any:
    """1e-6 of it, or 1e-6 of the unit (us, percent)."""
    return pytest.approx(value, rel=1e-6, abs=1e-6)


def test_temporal_breakdown(case: Case) -> None:
    theirs = {row["rank"]: row for row in case.hta.get_temporal_breakdown(visualize=False).to_dict("records")}
    assert list(theirs) == list(case.lanes)
    for rank, lanes in case.lanes.items():
        busy, compute = lanes.union(), lanes.union(lanes.is_compute)
        whole = int(busy[1][-1] - busy[0][0])
        assert whole / 1e3 == same(theirs[rank]["kernel_time(us)"])
        assert length(compute) / 1e3 == same(theirs[rank]["compute_time(us)"])
        assert (whole - length(busy)) / 1e3 == same(theirs[rank]["idle_time(us)"])
        assert (length(busy) - length(compute)) / 1e3 == same(theirs[rank]["non_compute_time(us)"])


def test_overlap(case: Case) -> None:
    with unrounded():
        frame = case.hta.get_comm_comp_overlap(visualize=False)
    theirs = dict(zip(frame["rank"], frame["comp_comm_overlap_pctg"], strict=True))
    for rank, lanes in case.lanes.items():
        compute, communication = lanes.union(lanes.is_compute), lanes.union(lanes.is_communication)
        assert 100 * common_length(compute, communication) / length(communication) == same(theirs[rank])


def test_kernels(case: Case) -> None:
    theirs = build_kernels_of_hta(case.hta)
    types = {"compute": "COMPUTATION", "comm": "COMMUNICATION", "copy": "MEMORY"}
    ours = {
        (rank, row.name): row
        for rank, trace in case.traces.items()
        for row in build_kernels(rank, trace, case.lanes[rank])
    }
    assert set(ours) == set(theirs)
    for key, row in ours.items():
        their = theirs[key]
        assert types[row.type] == their["kernel_type"]
        assert row.sum_ms * 1e3 == same(their["sum (us)"])
        assert row.mean_us == same(their["mean (us)"])
        assert row.max_us == same(their["max (us)"])
    for rank in case.traces:
        assert sum(row.pct for (of, _), row in ours.items() if of == rank) == pytest.approx(100)


def test_idle_categories(case: Case) -> None:
    theirs = build_idle_of_hta(case.hta, list(case.traces))
    ours = {
        (rank, row.stream, category): 1e3 * ms
        for rank, trace in case.traces.items()
        for row in build_idle(rank, trace)
        for category, ms in (
            ("host_wait", row.host_wait_ms),
            ("kernel_wait", row.kernel_wait_ms),
            ("other", row.other_ms),
        )
    }
    assert {key[:2] for key in ours} == {key[:2] for key in theirs}
    for key, idle_us in ours.items():
        assert idle_us == same(theirs.get(key, 0.0)), key
    assert set(theirs) <= set(ours)


def test_copies_take_as_long(case: Case) -> None:
    """Of HTA's numbers on copies only their time can be compared: its bandwidths are means of points in time."""
    theirs = build_kernels_of_hta(case.hta)
    for rank, trace in case.traces.items():
        sums: dict[str, float] = {}
        for (of, name), row in theirs.items():
            if of == rank and row["kernel_type"] == "MEMORY":
                kind = name.split()[1] if name.startswith("Memcpy") else "Memset"
                sums[kind] = sums.get(kind, 0.0) + row["sum (us)"]
        assert {row.kind: same(row.total_ms * 1e3) for row in build_copies(rank, trace)} == sums
