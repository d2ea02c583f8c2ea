"""What one strategy has saved, the others go on from. The full matrix: tests/nightly/trainer/test_moves.py."""

from __future__ import annotations

from tests.trainer.strategies.moves import go_on, save


def test_a_state_with_momentum_goes_on_under_another_strategy_and_number_of_ranks(tmp_path):
    moving = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1}
    save(tmp_path / "zero2", "zero2", "images", **moving)
    go_on(tmp_path / "zero2", ("fsdp", "zero3"), "images", **moving)
    go_on(tmp_path / "zero2", ("zero2", "fsdp"), "images", 1, **moving)


def test_a_tied_decoder_with_adapters_goes_on_between_nd_and_the_others(tmp_path):
    """nd keeps a tied head under the embedding's name alone, in stages and shards; the others have it twice."""
    save(tmp_path / "nd", "nd", "adapters", 2, pp=2)
    go_on(tmp_path / "nd", ("fsdp", "zero1"), "adapters")
    save(tmp_path / "zero3", "zero3", "tied")
    go_on(tmp_path / "zero3", ("nd",), "tied", 2, pp=2)
