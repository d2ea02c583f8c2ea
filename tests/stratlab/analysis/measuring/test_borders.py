"""Where a step begins and ends: no event more and none less."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.measuring.rank import RankAnalysis
from tests.stratlab.simulated.small import ALL_REDUCE, COMM_STREAM, TraceWriter

START = 1_000.0  # us


@dataclass(frozen=True)
class Kernel:
    """Times in us since START."""

    launch: float
    start: float
    end: float


def analyse(folder: Path, kernels: list[Kernel], name: str = "gemm") -> RankAnalysis:
    """Steps of 100 us each on the host, one after the other."""
    trace = TraceWriter(0)
    for step in range(3):
        trace.label(f"## Training Step {step + 1} ##", START + 100 * step, START + 100 * step + 100)
        trace.label("## Data Loading ##", START + 100 * step, START + 100 * step + 10)
    for k in kernels:
        trace.kernel(
            name, START + k.launch, START + k.start, START + k.end, COMM_STREAM if name != "gemm" else 7
        )
    (rank,) = measure_traces({0: trace.write(folder / "rank0_trace.json")}, {"dp_replicate": 2}).ranks
    return rank


# each begins when the one before it ends: the GPU is behind, as in most runs
QUEUE = [
    Kernel(5, 20, 70),
    Kernel(99.999, 70, 150),  # the last of step 1
    Kernel(100, 150, 260),  # the first of step 2, launched as it begins
    Kernel(130, 260, 261),
    Kernel(199.999, 261, 333),
    Kernel(200, 333, 334),
    Kernel(299.999, 334, 400),
    Kernel(300, 400, 777),  # of no step
]


def test_events_of_a_step_are_those_launched_in_it(tmp_path: Path) -> None:
    found = analyse(tmp_path, QUEUE)
    rows = [(row.step, row.step_ms, row.compute_ms, row.idle_ms) for row in found.rows]
    assert rows == [(1, 0.15, 0.13, 0.02), (2, 0.183, 0.183, 0), (3, 0.067, 0.067, 0)]
    assert found.durations.in_steps == len(QUEUE) - 1


def test_step_begins_with_the_host_where_the_gpu_waits_for_it(tmp_path: Path) -> None:
    found = analyse(tmp_path, [Kernel(10, 20, 60), Kernel(100, 110, 150), Kernel(210, 220, 299)])
    rows = [(row.step_ms, row.compute_ms, row.data_wait_ms, row.host_wait_ms) for row in found.rows]
    assert rows == [(0.1, 0.04, 0.01, 0.04), (0.1, 0.04, 0.01, 0.05), (0.1, 0.079, 0.01, 0.001)]


def test_longest_event_ends_the_step_not_the_last_one(tmp_path: Path) -> None:
    """Two streams: what was launched first may end last."""
    kernels = [Kernel(5, 20, 180), Kernel(90, 95, 96), Kernel(150, 185, 190), Kernel(250, 255, 256)]
    assert [row.step_ms for row in analyse(tmp_path, kernels).rows] == [0.18, 0.02, 0.1]


def test_calls_of_a_step_are_those_launched_in_it(tmp_path: Path) -> None:
    found = analyse(tmp_path, QUEUE, ALL_REDUCE)
    (row,) = found.collectives
    assert (row.count, row.total_ms, row.exposed_ms) == (7, 0.38, 0.38)
    assert [round(row.comm_exposed_ms, 6) for row in found.rows] == [0.13, 0.183, 0.067]
