"""Every strategy goes on with fewer and with more processes than it was saved by."""

from __future__ import annotations

import pytest

from tests.trainer.strategies.ranks.test_state import SIZES, compare_with_a_whole_run

CASES = [
    (strategy, sizes)
    for strategy in SIZES
    for sizes in ((4, 2, 1), (2, 4), (1, 2))
    if sizes != SIZES[strategy]
]


@pytest.mark.parametrize(("strategy", "sizes"), CASES)
def test_a_run_goes_on_with_another_number_of_processes(strategy, sizes, tmp_path):
    compare_with_a_whole_run(strategy, sizes, tmp_path)
