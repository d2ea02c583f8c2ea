"""The table of strategies and knobs against what it is read by: engines, charts, the advice, remedies for memory."""

import pytest

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.layout_rules import pipeline_problems
from stratlab_spec.layout.mesh_rules import broken_rules
from stratlab_spec.memory.prediction import describe_remedies, find_remedies
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import reduce_bucket_bytes, resolve_knobs
from stratlab_spec.strategies import STRATEGIES
from tests.codes import find_codes

TEXT = {"model": "qwen_tiny", "dataset": "arithmetic", "precision": "fp32"}
GIVEN = {
    "accumulate": "whole", "reshard_after_forward": "off", "prefetch_blocks": 2,
    "reduce_bucket_mib": 10, "gather_bucket_mib": 10, "overlap_reduction": False,
    "persistent_elements": 0, "reduce_dtype": "bf16", "static_graph": True,
}  # fmt: skip
OF_FULLY_SHARD = {"accumulate", "reshard_after_forward", "prefetch_blocks", "reduce_dtype"}
OF_DEEPSPEED = {"reduce_bucket_mib", "overlap_reduction", "reduce_dtype"}
OF_FILE = {
    ("single", 0): set(),
    ("ddp", 0): {"reduce_bucket_mib", "reduce_dtype", "static_graph"},
    ("zero", 1): OF_DEEPSPEED | {"gather_bucket_mib"},
    ("zero", 2): OF_DEEPSPEED | {"gather_bucket_mib"},
    ("zero", 3): OF_DEEPSPEED | {"reshard_after_forward", "prefetch_blocks", "persistent_elements"},
    **dict.fromkeys((("fsdp", 0), ("hsdp", 0), ("nd", 0)), OF_FULLY_SHARD),
}
"""By file of trainer/strategies and DeepSpeed's stage: what a strategy that reuses a file can be tuned by is known."""
SHARDED = [name for name, row in STRATEGIES.items() if row.file == "fsdp"]


def config_of(strategy: str, **settings) -> Config:
    given = {"run": "r", "strategy": strategy, **(TEXT if strategy == "nd" else {}), **settings}
    return Config.from_env({f"TRAINER_{name.upper()}": str(value) for name, value in given.items()})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_has_the_knobs_of_its_file_and_refuses_others(strategy: str) -> None:
    row = STRATEGIES[strategy]
    own = OF_FILE[row.file, row.deepspeed_stage]
    assert set(row.knobs) == own
    taken = config_of(strategy, **{name: GIVEN[name] for name in own})
    assert {name: resolve_knobs(taken)[name] for name in own} == {name: GIVEN[name] for name in own}
    others = {name: value for name, value in GIVEN.items() if name not in own}
    with pytest.raises(ConfigError) as caught:
        config_of(strategy, **others)
    assert find_codes(caught.value) == ["SL-knob-strategy"] * len(others)


def test_what_is_left_open_is_decided():
    alone = {"prefetch_blocks": 1, "reduce_dtype": "fp32"}
    alone |= {"accumulate": "sharded", "reshard_after_forward": "on"}
    for strategy in (*SHARDED, "nd"):
        assert resolve_knobs(config_of(strategy)) == alone | STRATEGIES[strategy].defaults
    piped = {"accumulate": "whole", "reshard_after_forward": "off"}
    assert resolve_knobs(config_of("nd"), 2) == alone | piped
    assert resolve_knobs(config_of("ddp"))["reduce_bucket_mib"] == 25
    assert resolve_knobs(config_of("zero2"))["reduce_bucket_mib"] == 192
    assert resolve_knobs(config_of("zero1"))["overlap_reduction"] is True
    assert resolve_knobs(config_of("single")) == {}
    assert reduce_bucket_bytes(config_of("ddp", reduce_bucket_mib=3)) == 3 * 2**20


def test_a_pipeline_leaves_no_choice():
    given = config_of("nd", accumulate="sharded", reshard_after_forward="on")
    assert not list(pipeline_problems(config_of("nd")))
    assert find_codes([*pipeline_problems(given)]) == ["SL-pipeline-accumulate", "SL-pipeline-reshard"]
    degrees = {"layout": "given", "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "ep": 1}
    piped = config_of("nd", accumulate="sharded", pp=2, **degrees)
    assert "SL-pipeline-accumulate" in find_codes(broken_rules(piped, 2))
    assert "SL-pipeline-accumulate" not in find_codes(broken_rules(given, 2))


def test_where_nothing_is_sharded_what_gathers_has_no_effect_and_says_so():
    whole, alone = (resolve_knobs(config_of("nd"), shards=shards) for shards in (True, False))
    assert (whole["reshard_after_forward"], whole["prefetch_blocks"]) == ("on", 1)
    assert {alone["reshard_after_forward"], alone["prefetch_blocks"]} == {"no effect: nothing is sharded"}
    assert alone["accumulate"] == whole["accumulate"] and alone["reduce_dtype"] == "fp32"
    assert "accumulate" not in resolve_knobs(config_of("zero3"), shards=False), "DeepSpeed's own"
    assert resolve_knobs(config_of("zero3"), shards=False)["prefetch_blocks"] == 1
    layouts = (Axes(dp_replicate=2, pp=2), Axes(dp_shard=2), Axes(cp=2), Axes(tp=2))
    assert [axes.shards for axes in layouts] == [False, True, True, True]


def test_replicas_do_not_add_up_shards_of_micro_batches_in_bf16():
    """hsdp 2 x 2 and nd 2 x 2; fsdp adds them to fp32 gradients."""
    sizes = {"micro_batch_size": 8, "reduce_dtype": "bf16"}
    for strategy, given in (("hsdp", {}), ("nd", {"layout": "given", "pp": 1, "cp": 1, "tp": 1, "ep": 1})):
        replicas = {"dp_replicate": 2, "dp_shard": 2, **given}

        def problems(strategy=strategy, batch=64, **settings) -> list[str]:
            return broken_rules(config_of(strategy, **{"global_batch_size": batch, **sizes, **settings}), 4)

        (problem,) = problems(**replicas)
        assert find_codes(problem) == ["SL-reduce-bf16-replicas"]
        assert " 2 replicas " in problem and " 2 micro-batches " in problem
        assert problems(**replicas, accumulate="whole") == [] == problems(**replicas, reduce_dtype="fp32")
        assert problems(**replicas, batch=32) == [], "one micro-batch"
        assert problems(**replicas | {"dp_replicate": 1, "dp_shard": 4}) == []
    assert broken_rules(config_of("fsdp", global_batch_size=64, **sizes), 4) == []
    assert broken_rules(config_of("ddp", global_batch_size=64, **sizes), 4) == []


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
