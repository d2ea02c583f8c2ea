"""What counts as every step made, over the attempts of a run on a cluster, on lines that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.faults import check_steps

STARTS = [{"attempt": 1, "from_step": 0}, {"attempt": 2, "from_step": 4}, {"attempt": 3, "from_step": 4}]


def train(attempt: int, first: int, last: int) -> list[dict[str, Any]]:
    return [{"kind": "train", "attempt": attempt, "step": step} for step in range(first, last + 1)]


LINES = [*train(1, 1, 5), {"kind": "eval", "attempt": 1, "step": 5}, *train(2, 5, 5), *train(3, 5, 8)]


def test_attempts_that_go_on_from_a_checkpoint_make_every_step() -> None:
    check_steps(STARTS, LINES, 8)
    check_steps(STARTS[:1], train(1, 1, 8), 8)
    check_steps([STARTS[0], {"attempt": 2, "from_step": 0}], [*train(1, 1, 5), *train(2, 1, 8)], 8)


@pytest.mark.parametrize(
    ("starts", "lines", "sentence"),
    [
        (STARTS, LINES[:-1], "the last attempt ended behind step 7"),
        (STARTS, [*LINES, *train(3, 8, 8)], r"attempt 3 made \[5, 6, 7, 8, 8\]"),
        (STARTS, [*LINES[:6], *train(2, 6, 6), *train(3, 5, 8)], r"attempt 2 made \[6\]"),
        (
            [STARTS[0], STARTS[1] | {"from_step": 6}],
            [*train(1, 1, 5), *train(2, 7, 8)],
            "behind step 6, reached was 5",
        ),
        (STARTS, [*train(1, 1, 5), *train(2, 5, 8)], "the last attempt ended behind step 8"),
    ],
)
def test_a_step_that_is_missing_or_made_twice_in_an_attempt_is_seen(
    starts: Any, lines: Any, sentence: str
) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_steps(starts, lines, 8)
