"""A run's row by hand: ranks that differ, an odd number of steps, sizes that are told and not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stratlab.analysis.measuring.bandwidth import CopyRow
from stratlab.analysis.measuring.gaps import Gaps
from stratlab.analysis.measuring.kernels import EDGES_US, Durations
from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.measuring.step_rows import PARTS, StepRow
from stratlab.analysis.measuring.timeline import MemoryPoint
from stratlab.analysis.reporting.totals import build_mean_row, build_rank_row

NOTHING = [0] * (len(EDGES_US) - 1)


def step(rank: int, number: int, compute_ms: float) -> StepRow:
    """A step that computes half of its time and is idle for the rest."""
    parts = dict.fromkeys((f"{name}_ms" for name in PARTS), 0.0)
    parts |= {"compute_ms": compute_ms, "idle_ms": compute_ms, "host_wait_ms": compute_ms}
    phases = dict.fromkeys(("data_ms", "forward_ms", "backward_ms", "optimizer_ms"))
    times: dict[str, Any] = {"step_ms": 2 * compute_ms, "host_step_ms": 2 * compute_ms, **parts, **phases}
    return StepRow(rank=rank, step=number, source="gpu", **times)


def rank(number: int, *compute_ms: float, copies: list[CopyRow] | None = None, **facts: Any) -> RankAnalysis:
    rows = [step(number, i, ms) for i, ms in enumerate(compute_ms)]
    plain = {
        "rank": number, "host": "here", "source": "gpu", "rows": rows, "copies": copies or [],
        "durations": Durations(EDGES_US, NOTHING, NOTHING, NOTHING, 0, 12), "collectives": [],
        "memory": [], "device_memory_gib": None, "allocations": None, "gaps": Gaps(), "unrecorded": 0,
    }  # fmt: skip
    return SimpleNamespace(**(plain | facts))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("pp", "micro_batches", "ideal"),
    [(1, 8, None), (2, 1, 50), (2, 8, 100 / 9), (4, 1, 75), (4, 5, 37.5), (4, 8, 300 / 11), (8, 3, 70)],
)
def test_the_ideal_bubble_is_a_share_of_the_whole_step(pp, micro_batches, ideal):
    """Of p stages and m micro-batches a stage works m of m + p - 1 turns."""
    found = build_mean_row([rank(0, 1.0)], {"pp": pp, "dp_shard": 2}, micro_batches)["bubble_ideal_pct"]
    assert found == (None if ideal is None else pytest.approx(ideal))


def test_a_rate_is_all_bytes_over_all_time_in_gb_per_second():
    """Rank 0: 6e9 bytes in 500 ms, rank 1: 1e9 in 200 ms: 7 GB in 0.7 s are 10 GB/s."""
    first = [CopyRow(0, "HtoD", 3, 6_000_000_000, 500.0, 12.0), CopyRow(0, "DtoH", 1, 500_000, 0.25, 2.0)]
    second = [CopyRow(1, "HtoD", 1, 1_000_000_000, 200.0, 5.0), CopyRow(1, "DtoD", 2, None, 3.0, None)]
    ranks = [rank(0, 1.0, copies=first), rank(1, 1.0, copies=second)]
    found = build_mean_row(ranks, {}, 1)
    assert found["h2d_gbps"] == pytest.approx(10) and found["d2h_gbps"] == pytest.approx(2)
    assert found["d2d_gbps"] is None, "its size is not told"
    assert build_rank_row(ranks[0])["h2d_gbps"] == pytest.approx(12)
    assert build_rank_row(ranks[1])["h2d_gbps"] == pytest.approx(5)


def test_means_and_the_slowest_of_unequal_ranks():
    """Three ranks with 3, 3 and 1 step: compute 2, 4 and 9 ms a step."""
    ranks = [rank(0, 1, 2, 3), rank(1, 4, 4, 4), rank(2, 9)]
    found = build_mean_row(ranks, {"dp_replicate": 3}, 2)
    assert (found["ranks"], found["steps"]) == (3, 3)
    assert found["step_ms"] == pytest.approx(2 * (6 + 12 + 9) / 7)
    assert found["compute_pct"] == pytest.approx(50)
    assert found["slowest_rank"] is None, "one step in common tells nothing"
    assert found["compute_imbalance"] == pytest.approx(9 / 5)
    assert found["kernels_per_step"] == pytest.approx(36 / 7)
    assert build_rank_row(ranks[0])["kernels_per_step"] == pytest.approx(4)


@pytest.mark.parametrize(
    ("sizes", "per_step"), [((600, 300), 300), ((600, None), None), ((None,), None), ((), None), ((0,), 0)]
)
def test_communication_is_given_where_the_size_of_each_collective_is_told(sizes, per_step):
    """By both ranks together, over three steps of theirs."""
    collectives = [SimpleNamespace(bytes=size, step=0, name="x") for size in sizes]
    ranks = [rank(0, 1, 2, collectives=collectives[:1]), rank(1, 4, collectives=collectives[1:])]
    assert build_mean_row(ranks, {}, 1)["comm_bytes_per_step"] == per_step


def test_memory_is_that_of_the_rank_with_most_in_gib():
    def points(rank: int, *mib: tuple[str, float, float | None]) -> list[MemoryPoint]:
        return [MemoryPoint(rank, device, 0.0, held, kept) for device, held, kept in mib]

    ranks = [
        rank(0, 1, memory=points(0, ("cuda:0", 512, 1024), ("cpu", 9e9, None)), device_memory_gib=80.0),
        rank(1, 1, memory=points(1, ("cuda:0", 1536, None)), device_memory_gib=40.0, allocations=7),
        rank(2, 1, memory=points(2, ("cuda:0", 256, 2560)), allocations=4),
    ]
    found = build_mean_row(ranks, {}, 1)
    assert (found["peak_allocated_gib"], found["peak_reserved_gib"]) == (1.5, 2.5)
    assert found["device_memory_gib"] == 40 and found["allocations_per_step"] == pytest.approx(11 / 3)
