"""Progress, epochs and slow ranks, from times by hand."""

import logging
import math
import re

import pytest

from trainer.metrics import progress
from trainer.metrics.progress import CHUNK, EpochCount, OwnTimes, Stragglers


def test_speed_and_time_left_by_hand(monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    caplog.set_level(logging.INFO, "trainer")
    shown = progress.ProgressLog(100)
    for clock[0], step in ((10.0, 10), (20.0, 20), (24.9, 25), (50.0, 60), (51.0, 100)):
        shown.show({"step": step, "loss": 0.5, "samples": 64, "step_time_ms": 80.0})
    told = [re.findall(r"\d[\d./]*", record.getMessage()) for record in caplog.records]
    assert told == [  # step, loss, samples per s, ms per step, seconds left
        ["10/100", "0.5000", "800", "80.0", "7"],  # nothing is timed yet: 90 to go, of 80 ms each
        ["20/100", "0.5000", "800", "80.0", "80"],  # 10 steps in 10 s, 80 to go
        ["60/100", "0.5000", "800", "80.0", "32"],  # 50 in 40, 40 to go
        ["100/100", "0.5000", "800", "80.0", "0"],
    ]


def run(samples: int, batch: int, steps: range, correct: float | None = 3.0) -> dict[int, dict]:
    """Step -> line; each step ends at its own second and takes half of one; its loss is its number."""
    count = EpochCount(samples)
    found = {step: count.add(step, float(step), 500.0, batch, float(step), correct) for step in steps}
    return {step: line for step, line in found.items() if line}


def test_a_batch_that_crosses_counts_with_the_epoch_that_it_ends() -> None:
    found = run(10, 4, range(1, 6))  # 4, 8, 12 | 16, 20
    assert {step: (*line.values(),)[:3] for step, line in found.items()} == {
        3: (1, 2.5, pytest.approx((1 + 2 + 3) / 3)),
        5: (2, 2.0, pytest.approx((4 + 5) / 2)),
    }


@pytest.mark.parametrize(
    ("first", "epochs"),
    [(3, [2, 3]), (4, [3])],  # behind a whole epoch; inside the second
)
def test_after_a_restart_only_whole_epochs_are_told(first: int, epochs: list[int]) -> None:
    assert [line["epoch"] for line in run(10, 5, range(first, 7)).values()] == epochs


UNKNOWN = math.nan


def feed(
    ranks,
    steps=100,
    data=lambda rank, step: 10.0,
    forward=lambda rank, step: 40.0,
    known=True,
    whole=100.0,
    first=1,
    written_every=1,
):
    """[(step at which it is known, Straggler)], and the judge; chunks come when they are whole and written."""
    times, judge, found = [OwnTimes() for _ in range(ranks)], Stragglers(), []
    for step in range(first, steps + 1):
        for rank, own in enumerate(times):
            own.add(step, data(rank, step), forward(rank, step), whole)
            own.settle(0.0 if known else UNKNOWN)
        if step % written_every:
            continue
        for of_ranks in zip(*[own.take() for own in times], strict=True):
            slow = judge.add(
                of_ranks[0].step, [c.data_ms for c in of_ranks], [c.own_ms for c in of_ranks], whole
            )
            found += [(step, each) for each in slow]
    return found, judge


@pytest.mark.parametrize(("ranks", "begins"), [(2, 1), (3, 14), (64, 11)])
def test_a_rank_of_twice_the_time_is_found_within_twenty_steps(ranks, begins):
    found, judge = feed(ranks, forward=lambda rank, step: 80.0 if rank == 1 and step >= begins else 40.0)
    assert [slow.rank for _, slow in found] == [1]
    assert found[0][0] - begins < 20 and abs(found[0][1].since_step - begins) < CHUNK
    assert found[0][1].share_pct == pytest.approx(40.0) and judge.worst and judge.worst.rank == 1


def test_the_worst_is_the_one_for_whom_the_others_wait_longest_not_the_one_with_the_largest_ratio():
    """Rank 1 takes five times as long for its data, rank 2 twice as long for its forward pass, which is longer."""
    _, judge = feed(
        4,
        data=lambda rank, step: 5.0 if rank != 1 else 25.0,
        forward=lambda rank, step: 40.0 if rank != 2 else 80.0,
    )
    assert judge.worst and judge.worst.rank == 2


def test_what_was_waited_is_taken_out_of_all_forward_passes_since_it_was_asked():
    own = OwnTimes()
    for step in range(1, CHUNK + 1):
        own.add(step, 1.0, 8.0, 20.0)
    assert own.take() == []
    own.settle(0.25)
    (chunk,) = own.take()
    assert (chunk.step, chunk.data_ms, chunk.own_ms) == (1, 1.0, 7.0)
