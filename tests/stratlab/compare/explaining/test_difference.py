"""Two steps subtracted: every part in its row, the rows sum up, and the main cause follows."""

from __future__ import annotations

import random

import pytest

from stratlab.compare.step_difference import TracedStep, build_traced_step, split_exposed
from tests.stratlab.compare.explaining.small_steps import (
    ALL_GATHER,
    ALL_REDUCE,
    DDP,
    build_analysis,
    build_rank,
    build_step,
    explain,
    take,
)

BASE = build_step(DDP, {ALL_REDUCE: 10.0})
LATE = [build_rank(120.0, 80.0, 20.0), build_rank(120.0, 100.0, 0.0)]
"""Rank 1 computes 20 ms longer, rank 0 waits for it."""


def test_every_part_has_its_row() -> None:
    own = {**DDP, "host": 9.0, "other_idle": 1.5, "compute": 58.0}
    run = build_step(own, {ALL_GATHER: 24.0, ALL_REDUCE: 4.0})
    pair = explain(run, BASE, run_ms=run.step_ms + 2.0)
    zero = dict.fromkeys((("straggler", None), ("copies", None), ("data", None)), 0.0)
    assert take(pair) == pytest.approx(
        zero
        | {
            ("more_communication", "all_gather"): 24.0,
            ("more_communication", "all_reduce"): -6.0,
            ("compute", None): -2.0,
            ("host", None): 5.0,
            ("idle", None): 1.0,
            ("not_traced", None): 2.0,
        }
    )
    assert pair["difference_ms"] == pytest.approx(24.0) and pair["main_cause"] == "more_communication"
    assert pair["traced_difference_ms"] == pytest.approx(22.0)


@pytest.mark.parametrize(
    ("total", "exposed", "split"),
    [
        ((30.0, 10.0), (22.0, 2.0), (20.0, 0.0)),  # a slower link; as much is hidden as before
        ((10.0, 10.0), (9.0, 2.0), (0.0, 7.0)),  # as much in total, less of it hidden
        ((20.0, 10.0), (8.0, 2.0), (6.0, 0.0)),  # twice as much, and some of that is hidden
        ((24.0, 0.0), (20.0, 0.0), (20.0, 0.0)),  # the other one does not have it
        ((12.0, 10.0), (1.0, 5.0), (0.0, -4.0)),  # more of it, but far better hidden
    ],
)
def test_exposed_communication_is_split(
    total: tuple[float, float], exposed: tuple[float, float], split: tuple[float, float]
) -> None:
    assert split_exposed(total, exposed) == pytest.approx(split)
    assert split_exposed(total[::-1], exposed[::-1]) == pytest.approx([-ms for ms in split])


def test_the_split_always_sums_and_never_jumps() -> None:
    draw = random.Random(1)
    for _ in range(500):
        total = draw.uniform(0, 50), draw.uniform(0, 50)
        exposed = draw.uniform(0, total[0]), draw.uniform(0, total[1])
        more, less = split_exposed(total, exposed)
        assert more + less == pytest.approx(exposed[0] - exposed[1], abs=1e-12) and more * less >= 0
        near = split_exposed((total[0] + 1e-6, total[1]), exposed)
        assert near == pytest.approx((more, less), abs=1e-5)


def test_totals_without_waiting_axes_and_bytes_of_a_collective() -> None:
    # `total_ms` of the analysis holds 1 ms of waiting in every call: it must not look like a slower link
    assert BASE.total == {ALL_REDUCE: 10.0} and BASE.sent_bytes == {ALL_REDUCE: 1000.0}
    one, other = (
        build_step(DDP, {("all_reduce", axis): ms})
        for axis, ms in (("dp_shard", 10.0), ("dp_replicate", 30.0))
    )
    two = build_step(DDP, {("all_reduce", "dp_replicate"): 9.0, ("all_reduce", "tp"): 30.0})
    rows = [row for row in explain(other, one)["parts"] if row["collective"]]
    assert [(row["axis"], row["ms"]) for row in rows] == [("", pytest.approx(20.0))]
    rows = [row for row in explain(two, other)["parts"] if row["collective"]]
    assert {row["axis"]: row["ms"] for row in rows} == pytest.approx({"dp_replicate": -21.0, "tp": 30.0})
    for sent, why in ((1000, "link"), (2000, "bytes"), (None, "")):
        assert explain(build_step(DDP, {ALL_REDUCE: 40.0}, sent=sent), BASE)["parts"][0]["why"] == why
    analysis = build_analysis(DDP, {ALL_REDUCE: 40.0}) | {"collectives": []}
    untold = build_traced_step(analysis)
    assert isinstance(untold, TracedStep) and explain(untold, BASE)["parts"][0]["why"] == "exposed"


def test_the_slow_rank_s_own_time_belongs_to_the_straggler() -> None:
    """In the mean 10 and 10, and all of it is one cause."""
    even = [build_rank(100.0, 80.0, 0.0)] * 2
    base = build_step({"compute": 80.0, "straggler": 0.0}, {ALL_REDUCE: 20.0}, ranks=even)
    run = build_step({"compute": 90.0, "straggler": 10.0}, {ALL_REDUCE: 20.0}, ranks=LATE)
    pair = explain(run, base)
    assert run.parts == pytest.approx({"compute": 80.0, "straggler": 20.0})
    assert pair["main_cause"] == "straggler" and take(pair)["straggler", None] == pytest.approx(20.0)
    assert pair["late_rank"] == 1
    staged = build_step({"compute": 90.0, "straggler": 5.0, "bubble": 5.0}, {ALL_REDUCE: 20.0}, ranks=LATE)
    assert staged.parts["compute"] == 90.0, "stages of a pipeline differ by design"
    unknown = build_step({"compute": 90.0, "straggler": 10.0}, {ALL_REDUCE: 20.0})
    assert unknown.parts == {"compute": 90.0, "straggler": 10.0}


def test_a_transfer_that_came_too_late_to_hide_belongs_to_the_straggler() -> None:
    """Rank 0 waits 12 of the 20 ms; the other 8 are transfer that rank 1 hides and rank 0 cannot any more."""
    ranks = [build_rank(120.0, 80.0, 12.0), build_rank(120.0, 100.0, 0.0)]
    analysis = build_analysis({"compute": 90.0, "straggler": 6.0}, {ALL_REDUCE: 24.0}, ranks=ranks)
    for rank, (exposed_ms, wait_ms) in enumerate([(40.0, 12.0), (20.0, 0.0)]):
        analysis["collectives"][rank] |= {"rank": rank, "exposed_ms": exposed_ms, "exposed_wait_ms": wait_ms}
    step = build_traced_step(analysis)
    assert isinstance(step, TracedStep) and step.exposed == pytest.approx({ALL_REDUCE: 20.0})
    assert step.parts == pytest.approx({"compute": 80.0, "straggler": 20.0})


def test_the_main_cause_counts_all_collectives_and_gives_overlap_lost_to_a_late_host_to_the_host() -> None:
    run = build_step({**DDP, "compute": 72.0}, {ALL_GATHER: 8.0, ALL_REDUCE: 8.0})
    assert explain(run, build_step(DDP, {}))["main_cause"] == "more_communication"  # 16 against 12
    total = {ALL_GATHER: 20.0, ALL_REDUCE: 20.0}
    base = build_step(DDP, {ALL_GATHER: 5.0, ALL_REDUCE: 5.0}, total)
    for host, cause in ((24.0, "host"), (9.0, "less_overlap")):  # 20, and 24 of lost overlap; 5 of the 24
        late = build_step({**DDP, "host": host}, {ALL_GATHER: 17.0, ALL_REDUCE: 17.0}, total)
        pair = explain(late, base)
        assert pair["main_cause"] == cause and take(pair)["less_overlap", "all_gather"] == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("difference_ms", "cause"), [(19.0, "host"), (21.0, None), (4.0, None), (-10.0, None)]
)
def test_a_remainder_larger_than_what_is_explained_names_no_cause(
    difference_ms: float, cause: str | None
) -> None:
    """10 are explained: of 21 less than half, of 4 another difference, of -10 another direction."""
    run = build_step({**DDP, "host": 14.0}, {ALL_REDUCE: 10.0})
    pair = explain(run, BASE, run_ms=BASE.step_ms + difference_ms)
    assert pair["main_cause"] == cause and bool(pair["remedy"]) is bool(cause)


def test_runs_too_close_for_one_repeat_have_no_cause() -> None:
    pair = explain(build_step({**DDP, "host": 5.0}, {ALL_REDUCE: 10.0}), BASE)
    assert pair["no_cause"] and pair["main_cause"] is None
    assert sum(row["ms"] for row in pair["parts"]) == pytest.approx(1.0), "the parts are shown all the same"
