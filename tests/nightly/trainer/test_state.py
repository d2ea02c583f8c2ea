"""Every strategy goes on from what another Python saved, bitwise, at the same number of processes."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.trainer.strategies.ranks.test_state import load_and_continue, read, save_by_name
from tests.trainer.strategies.small import largest_difference

STRATEGIES = ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_goes_on_from_what_the_images_python_has_saved(strategy, tmp_path):
    world_size = 1 if strategy == "single" else 2
    run_ranks(lambda: save_by_name(tmp_path / "state", tmp_path / "whole", strategy), world_size)
    run_ranks(lambda: load_and_continue(tmp_path / "state", tmp_path / "resumed", strategy), world_size)
    assert largest_difference(read(tmp_path / "whole"), read(tmp_path / "resumed")) == 0.0
