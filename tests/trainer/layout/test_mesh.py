from __future__ import annotations

from typing import get_args

import pytest

from trainer.layout.axes import Axes
from trainer.layout.mesh import broken_rules, resolve_axes
from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import Strategy
from trainer.settings.strategy_table import STRATEGIES


def config(**settings) -> Config:
    if settings.get("strategy") == "nd":
        settings = {"model": "qwen_tiny"} | settings
    return Config(**{"run": "try", "global_batch_size": 48, "micro_batch_size": 1} | settings)


def test_every_strategy_says_which_axes_it_uses():
    assert set(STRATEGIES) == set(get_args(Strategy))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_the_axes_multiply_to_the_world_size(strategy, world_size):
    if strategy == "single" and world_size > 1:
        assert "runs in 1 process" in broken_rules(config(strategy=strategy), world_size)[0]
        return
    assert resolve_axes(config(strategy=strategy), world_size).world_size == world_size


def test_the_axis_of_the_strategy_takes_all_processes():
    assert resolve_axes(config(strategy="ddp"), 4) == Axes(dp_replicate=4, dp_shard=1)
    assert resolve_axes(config(strategy="fsdp"), 4) == Axes(dp_replicate=1, dp_shard=4)


@pytest.mark.parametrize(
    ("settings", "world_size", "sentence"),
    [
        ({"strategy": "ddp", "dp_replicate": 3}, 2, "dp_replicate=3 makes 3 processes, but there are 2"),
        ({"strategy": "ddp", "dp_shard": 2}, 2, "TRAINER_DP_SHARD=2: strategy ddp uses only dp_replicate"),
        ({"strategy": "single", "dp_shard": 2}, 1, "strategy single has no axes"),
        (
            {"strategy": "ddp", "global_batch_size": 10, "micro_batch_size": 4},
            2,
            "TRAINER_GLOBAL_BATCH_SIZE=10: must be a multiple of TRAINER_MICRO_BATCH_SIZE=4 x 2 processes = 8",
        ),
    ],
)
def test_a_broken_rule_says_what_would_work(settings, world_size, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve_axes(config(**settings), world_size)


def test_all_broken_rules_are_named_at_once():
    wrong = config(strategy="ddp", dp_shard=2, dp_replicate=3, global_batch_size=10, micro_batch_size=4)
    assert len(broken_rules(wrong, 2)) == 3


def test_replicas_of_shards_follow_the_nodes():
    """dp_shard on the fast links of one node, dp_replicate between nodes; what is typed counts more."""
    hsdp = config(strategy="hsdp")
    assert resolve_axes(hsdp, 8, processes_per_node=4) == Axes(dp_replicate=2, dp_shard=4)
    assert resolve_axes(hsdp, 4, processes_per_node=4) == Axes(dp_replicate=1, dp_shard=4)
    assert resolve_axes(hsdp, 4, processes_per_node=1) == Axes(dp_replicate=4, dp_shard=1)
    assert resolve_axes(hsdp, 4) == Axes(dp_replicate=1, dp_shard=4)
    half = config(strategy="hsdp", dp_shard=2)
    assert resolve_axes(half, 8, processes_per_node=4) == Axes(dp_replicate=4, dp_shard=2)
    twice = config(strategy="hsdp", dp_replicate=2)
    assert resolve_axes(twice, 8, processes_per_node=8) == Axes(dp_replicate=2, dp_shard=4)


def test_sizes_that_do_not_multiply_name_the_ones_that_could():
    wrong = config(strategy="hsdp", dp_shard=3)
    assert broken_rules(wrong, 4, 2) == [
        "dp_replicate=1 x dp_shard=3 makes 3 processes, but there are 4; 0 = fill up, "
        "else each of dp_replicate, dp_shard must be one of 1, 2, 4"
    ]


def test_other_strategies_do_not_care_about_nodes():
    assert resolve_axes(config(strategy="fsdp"), 4, 2) == Axes(dp_shard=4)
    assert resolve_axes(config(strategy="ddp"), 4, 2) == Axes(dp_replicate=4)
