"""The numbers of a whole rank and a whole run, by hand: unequal ranks, unequal copies, odd pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.reporting.totals import build_mean_row, build_rank_row
from tests.stratlab.simulated.small import COPY_STREAM, GPU, TraceWriter, build_gpu_trace

MIB = 1 << 20
COPIES = {  # rank -> name, bytes, us
    0: [("Memcpy HtoD (Pinned -> Device)", 4 * MIB, 500), ("Memcpy HtoD (Pageable -> Device)", MIB, 250)],
    1: [("Memcpy HtoD (Pinned -> Device)", 3 * MIB, 250), ("Memcpy DtoH (Device -> Pinned)", 512, 2)],
    2: [("Memcpy DtoD (Device -> Device)", 96 * MIB, 64)],
}


def build_rank(rank: int) -> TraceWriter:
    trace = TraceWriter(rank)
    trace.label("## Training Step 1 ##", 1000, 3000)
    for number, (name, size, us) in enumerate(COPIES[rank]):
        start = 1100 + 600 * number
        trace.add("cuda_runtime", "cudaMemcpyAsync", start - 5, start - 1, correlation=number + 1)
        place = {"device": 0, "stream": COPY_STREAM, "correlation": number + 1}
        trace.add("gpu_memcpy", name, start, start + us, COPY_STREAM, GPU, bytes=size, **place)
    return trace


def read(folder: Path, traces: dict[int, TraceWriter]) -> list[RankAnalysis]:
    return measure_traces(
        {r: trace.write(folder / f"rank{r}_trace.json") for r, trace in traces.items()}
    ).ranks


def test_copy_rates_are_all_bytes_over_all_time_in_gb_per_second(tmp_path: Path) -> None:
    ranks = read(tmp_path, {rank: build_rank(rank) for rank in COPIES})
    rows = [build_rank_row(rank) for rank in ranks]
    # 5 MiB in 750 us, 3 MiB in 250 us; together 8 MiB in 1 ms, which is not the mean of the two
    assert [row["h2d_gbps"] for row in rows] == [pytest.approx(6.990506667), pytest.approx(12.582912), None]
    assert [row["d2h_gbps"] for row in rows] == [None, pytest.approx(0.256), None]
    assert [row["d2d_gbps"] for row in rows] == [None, None, pytest.approx(1572.864)]
    mean = build_mean_row(ranks, {}, 1)
    assert (mean["h2d_gbps"], mean["d2h_gbps"], mean["d2d_gbps"]) == pytest.approx(
        (8.388608, 0.256, 1572.864)
    )
    # the table of copies says the same of each rank and kind
    gbps = {(copy.rank, copy.kind): copy.gbps for rank in ranks for copy in rank.copies}
    assert gbps == pytest.approx(
        {(0, "HtoD"): 6.990506667, (1, "HtoD"): 12.582912, (1, "DtoH"): 0.256, (2, "DtoD"): 1572.864}
    )


@pytest.mark.parametrize(
    ("stages", "micro_batches", "expected_pct"),
    [
        (1, 4, None),
        (2, 1, 50.0),  # one waits while the other works
        (2, 4, 20.0),
        (4, 4, 300 / 7),
        (3, 5, 200 / 7),
        (8, 32, 700 / 39),
    ],
)
def test_ideal_bubble_of_a_pipeline(
    tmp_path: Path, stages: int, micro_batches: int, expected_pct: float | None
) -> None:
    """p - 1 of the m + p - 1 times that a micro-batch takes on a stage are spent filling and draining."""
    ranks = read(tmp_path, {0: build_gpu_trace(0, steps=1)})
    found = build_mean_row(ranks, {"pp": stages, "dp_replicate": 2}, micro_batches)["bubble_ideal_pct"]
    assert found == (None if expected_pct is None else pytest.approx(expected_pct))
