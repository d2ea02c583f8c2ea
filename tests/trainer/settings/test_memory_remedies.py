"""What to try when memory does not suffice: in order, only what works, the same samples in a step."""

from __future__ import annotations

import pytest

from stratlab_spec.layout.mesh_rules import broken_rules
from stratlab_spec.memory.prediction import describe_remedies, find_remedies
from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import STRATEGIES

BLOCKS, ONE = {"activation_checkpointing": "blocks"}, {"micro_batch_size": 1}


def config(**settings) -> Config:
    return Config(**{"run": "try", "global_batch_size": 96, "micro_batch_size": 12} | settings)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (
            {"strategy": "ddp"},
            [{"micro_batch_size": 6}, BLOCKS, {"strategy": "zero1"}, {"offload": "optimizer"}],
        ),
        (
            {"strategy": "ddp", "micro_batch_size": 3},
            [ONE, BLOCKS, {"strategy": "zero1"}, {"offload": "optimizer"}],
        ),
        (
            {"strategy": "zero2", **ONE, **BLOCKS, "offload": "optimizer"},
            [{"strategy": "zero3"}, {"offload": "all"}],
        ),
        ({"strategy": "fsdp", **ONE, **BLOCKS, "offload": "all"}, []),
    ],
)
def test_the_order(settings, found):
    assert find_remedies(config(**settings), 4) == found
    said = ", then ".join(f"run.config.{name}={value}" for each in found for name, value in each.items())
    assert describe_remedies(found) == said


def test_each_rung_is_a_valid_run():
    for strategy in STRATEGIES.keys() - {"nd"}:
        ranks = 1 if strategy == "single" else 4
        now = {"strategy": strategy, "model": "vit_tiny"}
        for rung in find_remedies(config(**now), ranks):
            now |= rung
            assert broken_rules(config(**now), ranks, 2) == []
