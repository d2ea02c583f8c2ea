"""Every strategy goes on from what another Python saved."""

from __future__ import annotations

import pytest

from tests.trainer.strategies.ranks.test_state_files import compare_with_what_was_saved_by_name

STRATEGIES = ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_goes_on_from_what_the_images_python_has_saved(strategy, tmp_path):
    compare_with_what_was_saved_by_name(strategy, tmp_path)
