"""What one strategy has saved, the others go on from. The full matrix: tests/nightly/trainer/test_moves.py."""

from __future__ import annotations

import pytest

from tests.trainer.strategies.moves import go_on, save

MOVES = {
    "fsdp": ("ddp", "hsdp", "zero2", "zero3"),
    "zero2": ("fsdp", "single", "zero3"),
    "zero3": ("ddp", "zero1", "zeropp"),
}


@pytest.mark.parametrize("source", MOVES)
def test_a_state_goes_on_under_another_strategy(source, tmp_path):
    save(tmp_path / source, source, "images")
    for target in MOVES[source]:
        go_on(tmp_path / source, target, "images")
