from __future__ import annotations

import pytest

from stratlab_spec.layout.mesh_rules import broken_rules, resolve_axes
from stratlab_spec.layout.parallel_dims import Axes
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes


def config(strategy: str, **settings) -> Config:
    sizes = {"global_batch_size": 48, "micro_batch_size": 1}
    return Config(**{"run": "try", "strategy": strategy} | sizes | settings)


def test_the_axis_of_the_strategy_takes_all_processes():
    assert resolve_axes(config("single"), 1) == Axes(dp_replicate=1, dp_shard=1)
    assert resolve_axes(config("ddp"), 4, 2) == Axes(dp_replicate=4, dp_shard=1)
    for strategy in ("fsdp", "zero1", "zero3"):
        assert resolve_axes(config(strategy), 3, 2).world_size == 3
    assert resolve_axes(config("fsdp"), 4, 2) == Axes(dp_replicate=1, dp_shard=4), "nodes are no matter"


@pytest.mark.parametrize(
    ("asked", "processes", "code", "named"),
    [
        (config("ddp", dp_replicate=3), 2, "SL-axes-processes", ("dp_replicate=3", "2")),
        (config("hsdp", dp_shard=3), 4, "SL-axes-processes", ("dp_replicate=1 x dp_shard=3", "1, 2, 4")),
        (config("ddp", dp_shard=2), 2, "SL-axis-unused", ("TRAINER_DP_SHARD=2", "dp_replicate")),
        (config("single", dp_shard=2), 1, "SL-axis-unused", ("TRAINER_DP_SHARD=2",)),
        (config("single"), 2, "SL-single-one-process", ("2",)),
        (
            config("ddp", global_batch_size=10, micro_batch_size=4),
            2,
            "SL-axes-batch-indivisible",
            ("TRAINER_GLOBAL_BATCH_SIZE=10", "TRAINER_MICRO_BATCH_SIZE=4", "= 8", "example 8"),
        ),
        (
            config("ddp", static_graph=True),
            2,
            "SL-static-graph-accumulates",
            ("TRAINER_MICRO_BATCH_SIZE=24",),
        ),
    ],
)
def test_a_broken_rule_says_what_would_work(asked, processes, code, named):
    (found,) = broken_rules(asked, processes)
    assert find_codes(found) == [code] and all(name in found for name in named), found


def test_all_broken_rules_are_named_at_once():
    wrong = config("ddp", dp_shard=2, dp_replicate=3, global_batch_size=10, micro_batch_size=4)
    with pytest.raises(ConfigError) as refused:
        resolve_axes(wrong, 2)
    assert len(refused.value.problems) == 3


def test_replicas_of_shards_follow_the_nodes():
    """dp_shard on the fast links of one node, dp_replicate between nodes; what is typed counts more."""
    hsdp = config("hsdp")
    assert resolve_axes(hsdp, 8, processes_per_node=4) == Axes(dp_replicate=2, dp_shard=4)
    assert resolve_axes(hsdp, 4, processes_per_node=1) == Axes(dp_replicate=4, dp_shard=1)
    assert resolve_axes(hsdp, 4) == Axes(dp_replicate=1, dp_shard=4)
    half = config("hsdp", dp_shard=2)
    assert resolve_axes(half, 8, processes_per_node=4) == Axes(dp_replicate=4, dp_shard=2)
    twice = config("hsdp", dp_replicate=2)
    assert resolve_axes(twice, 8, processes_per_node=8) == Axes(dp_replicate=2, dp_shard=4)
