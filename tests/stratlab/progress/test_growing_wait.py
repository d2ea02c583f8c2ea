from __future__ import annotations

from stratlab.progress.growing_wait import GrowingWait


def test_what_does_not_move_is_said_ever_more_rarely() -> None:
    patience = GrowingWait(0)
    assert [now for now in range(0, 300, 5) if patience.is_over(now)] == [5, 15, 35, 75, 135, 195, 255]


def test_what_is_new_waits_for_the_least_alone() -> None:
    patience = GrowingWait(0)
    assert patience.is_over(5) and not patience.is_least_over(9) and patience.is_least_over(10)
