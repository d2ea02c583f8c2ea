"""Every strategy goes on with fewer and with more processes than saved it, and from what another Python saved."""

from __future__ import annotations

import pytest

from tests.trainer.strategies.ranks.test_state import NATIVE, SIZES, ZERO, compare_with_a_whole_run
from tests.trainer.strategies.ranks.test_state_files import compare_with_what_was_saved_by_name

CASES = [
    (strategy, sizes)
    for strategy in (*NATIVE, *ZERO)
    for sizes in ((4, 2, 1), (2, 4), (1, 2))
    if strategy != "single" and sizes != SIZES.get(strategy)
]


@pytest.mark.parametrize(("strategy", "sizes"), CASES)
def test_a_run_goes_on_with_another_number_of_processes(strategy, sizes, tmp_path):
    compare_with_a_whole_run(strategy, sizes, tmp_path)


@pytest.mark.parametrize("strategy", NATIVE + ZERO)
def test_a_run_goes_on_from_what_the_images_python_has_saved(strategy, tmp_path):
    compare_with_what_was_saved_by_name(strategy, tmp_path)
