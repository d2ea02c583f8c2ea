"""Who waited for whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stratlab.analysis.collectives import Calls, build_collectives
from stratlab.analysis.rank import analyse_rank
from tests.stratlab.simulated.small import build_gpu_trace


def calls(rank: int, name: str, *durations_us: float) -> Calls:
    return Calls(rank, name, np.array(durations_us))


def test_late_rank_waits_for_nobody_and_the_others_for_it(tmp_path: Path) -> None:
    found = [
        *analyse_rank(0, build_gpu_trace(0).write(tmp_path / "0.json")).calls,
        *analyse_rank(1, build_gpu_trace(1, comm_start=700).write(tmp_path / "1.json")).calls,
    ]
    early, late = build_collectives(found, one_group=True)
    assert early.name == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert (early.count, early.total_ms, early.wait_ms) == (3, pytest.approx(0.9), pytest.approx(0.3))
    assert (late.count, late.total_ms, late.wait_ms) == (3, pytest.approx(0.6), pytest.approx(0.0))
    assert (early.arrived_last, late.arrived_last) == (0, 3)


def test_longest_comes_first() -> None:
    found = [calls(0, "b", 5.0), calls(0, "a", 9.0), calls(1, "b", 11.0)]
    rows = build_collectives(found, one_group=True)
    assert [(r.name, r.rank) for r in rows] == [("b", 0), ("b", 1), ("a", 0)]


@pytest.mark.parametrize(
    ("second", "one_group"),
    [
        ([calls(1, "a", 3.0)], True),  # another number of calls
        ([calls(1, "b", 3.0, 4.0)], True),  # not on every rank
        ([], True),  # nobody to wait for
        ([calls(1, "a", 3.0, 4.0)], False),  # several process groups
    ],
)
def test_calls_that_cannot_be_matched_have_no_waiting(second: list[Calls], one_group: bool) -> None:
    rows = build_collectives([calls(0, "a", 1.0, 2.0), *second], one_group)
    assert all(row.wait_ms is None and row.arrived_last is None for row in rows)


def test_nothing_outside_the_steps_counts(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    trace.kernel("ncclDevKernel_AllGather(x)", 9000, 9010, 9500)
    (found,) = analyse_rank(0, trace.write(tmp_path / "0.json")).calls
    assert found.name == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
