"""What to try when memory does not suffice: in order, only what works, the same samples in a step."""

from __future__ import annotations

import pytest

from trainer.layout.mesh import broken_rules
from trainer.settings.config import Config
from trainer.settings.memory_remedies import describe_remedies, find_remedies
from trainer.settings.strategy_table import STRATEGIES

BLOCKS = {"activation_checkpointing": "blocks"}
ONE = {"micro_batch_size": 1}


def config(**settings) -> Config:
    return Config(**{"run": "try", "global_batch_size": 96, "micro_batch_size": 12} | settings)


@pytest.mark.parametrize(
    ("settings", "ranks", "found"),
    [
        (
            {"strategy": "ddp"},
            4,
            [{"micro_batch_size": 6}, BLOCKS, {"strategy": "zero1"}, {"offload": "optimizer"}],
        ),
        ({"strategy": "single", "micro_batch_size": 3}, 1, [ONE, BLOCKS]),
        (
            {"strategy": "zero2", **ONE, **BLOCKS, "offload": "optimizer"},
            4,
            [{"strategy": "zero3"}, {"offload": "all"}],
        ),
        (
            {"strategy": "fsdp", **ONE, "activation_checkpointing": "selective"},
            4,
            [BLOCKS, {"offload": "all"}],
        ),
        ({"strategy": "fsdp", **ONE, **BLOCKS, "offload": "all"}, 4, []),
    ],
)
def test_the_order(settings, ranks, found):
    assert find_remedies(config(**settings), ranks) == found


def test_they_are_said_as_a_user_types_them():
    said = describe_remedies([{"micro_batch_size": 6}, {"strategy": "zero1"}])
    assert said == "run.config.micro_batch_size=6, then run.config.strategy=zero1"


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "nd"])
def test_each_rung_is_a_valid_run(strategy):
    ranks = 1 if strategy == "single" else 4
    now = {"strategy": strategy, "model": "vit_tiny"}
    for rung in find_remedies(config(**now), ranks):
        now |= rung
        assert broken_rules(config(**now), ranks, 2) == []
