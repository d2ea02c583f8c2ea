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


def test_momentum_goes_on_under_another_strategy(tmp_path):
    moving = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1}
    save(tmp_path / "zero2", "zero2", "images", **moving)
    go_on(tmp_path / "zero2", "fsdp", "images", **moving)
    go_on(tmp_path / "zero2", "zero3", "images", **moving)


def test_a_tied_decoder_goes_on_between_nd_and_the_others(tmp_path):
    """nd keeps a tied head under the embedding's name alone, in stages and shards; the others have it twice."""
    save(tmp_path / "nd", "nd", "tied", 2, pp=2)
    go_on(tmp_path / "nd", "fsdp", "tied")
    go_on(tmp_path / "nd", "zero1", "tied")
    save(tmp_path / "fsdp", "fsdp", "tied")
    go_on(tmp_path / "fsdp", "nd", "tied", 2, pp=2)


def test_adapters_go_on_from_zero_to_nd(tmp_path):
    save(tmp_path / "zero3", "zero3", "adapters")
    go_on(tmp_path / "zero3", "nd", "adapters", 2, tp=2)
