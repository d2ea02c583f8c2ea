"""Strategies go on with fewer and with more processes than saved it, and from what another Python saved."""

from __future__ import annotations

import pytest

from tests.trainer.strategies.ranks.test_state import compare_with_a_whole_run
from tests.trainer.strategies.ranks.test_state_files import compare_with_what_was_saved_by_name

SIZES = {"ddp": (4, 2, 1), "hsdp": (2, 4), "zero1": (2, 4), "zero3": (4, 2, 1), "zeropp": (1, 2)}


@pytest.mark.parametrize("strategy", SIZES)
def test_a_run_goes_on_with_another_number_of_processes(strategy, tmp_path):
    compare_with_a_whole_run(strategy, SIZES[strategy], tmp_path)


@pytest.mark.parametrize("strategy", ["ddp", "hsdp", "zero3"])
def test_a_run_goes_on_from_what_the_images_python_has_saved(strategy, tmp_path):
    compare_with_what_was_saved_by_name(strategy, tmp_path)
