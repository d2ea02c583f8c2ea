"""Axes and degrees by processes and dimensions, and every rule that they can break, on the exact published shapes."""

import dataclasses

import pytest

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.mesh_rules import broken_rules, resolve_axes, shape_problems
from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.memory.layout_report import main
from stratlab_spec.models.decoder_config import SHAPES
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes

DENSE, MOE = "qwen2.5-3b", "qwen3-30b-a3b"


def config(model=DENSE, **settings) -> Config:
    sizes = {"global_batch_size": 384, "micro_batch_size": 1, "seq_len": 2048}
    return Config(**{"run": "try", "strategy": "nd", "model": model} | sizes | settings)


def given(model=DENSE, **settings) -> Config:
    return config(model, layout="given", **settings)


def layout(processes, **settings):
    chosen = config(**settings)
    return resolve_layout(chosen, processes, SHAPES[chosen.model])


def problems(chosen, processes, **changes):
    try:
        resolve_layout(chosen, processes, dataclasses.replace(SHAPES[chosen.model], **changes))
    except ConfigError as failure:
        return failure.problems
    return []


# (processes, dimensions) -> name, and what it lacks of what the dimensions promise; 5 is of the model with experts
CHOSEN = {
    (1, 1): ("dp1", ("data",)), (2, 1): ("dp2x1", ()), (2, 4): ("pp2", ("data", "tensor", "sequence")),
    (2, 5): ("tp2+sp.ep2", ("data", "pipeline")), (4, 2): ("pp2.dp2", ()),
    (4, 4): ("pp2.tp2+sp", ("data",)), (6, 3): ("pp2.dp3", ("tensor",)),
    (6, 5): ("pp2.dp3", ("tensor", "sequence", "expert")), (8, 3): ("pp2.dp2.tp2", ()),
    (8, 4): ("pp2.dp2.tp2+sp", ()), (8, 5): ("pp2.dp2.tp2+sp.ep4", ()),
    (16, 4): ("pp2.dp2.cp2.tp2+sp", ()), (16, 5): ("pp2.dp2.cp2.tp2+sp.ep8", ()),
}  # fmt: skip


def test_auto_chooses_by_processes_and_dimensions():
    found = {}
    for processes, dimensions in CHOSEN:
        one = layout(processes, dimensions=dimensions, model=MOE if dimensions == 5 else DENSE)
        assert one.axes.world_size == processes and one.degenerate == bool(one.missing)
        found[processes, dimensions] = one.name, one.missing
    assert found == CHOSEN
    assert layout(8, dimensions=1, model=MOE).axes == Axes(dp_replicate=8), "one dimension shards nothing"
    record = layout(8, dimensions=4).as_dict()
    assert (record["name"], record["dimensions"], record["degenerate"]) == ("pp2.dp2.tp2+sp", 4, False)
    assert all(degree in record["reason"] for degree in ("pp 2", "tp 2", "cp 1", "dp_shard 2"))


def test_a_model_that_cannot_be_split_keeps_its_axis_whole():
    def name(processes=16, dimensions=4, shape=None, **settings):
        chosen = config(dimensions=dimensions, **settings)
        return resolve_layout(chosen, processes, dataclasses.replace(SHAPES[DENSE], **shape or {})).name

    assert name(shape={"kv_heads": 1}) == "pp2.dp4.cp2"
    assert name(shape={"layers": 1}) == "dp4.cp2.tp2+sp"
    assert name(shape={"heads": 6}) == "pp2.dp4.tp2+sp", "3 heads of a tp rank do not go to two"
    assert name(shape={"heads": 6}, cp_method="allgather") == "pp2.dp2.cp2.tp2+sp"
    assert name(seq_len=2050) == "pp2.dp4.tp2+sp"
    assert name(4, 2, {"layers": 3}, pp_schedule="interleaved1f1b") == "dp4"


def test_given_degrees_are_taken_and_dp_shard_fills_up():
    found = resolve_layout(given(pp=2, dp_replicate=2), 8, SHAPES[DENSE])
    assert (found.axes, found.name) == (Axes(pp=2, dp_replicate=2, dp_shard=2), "pp2.dp2x2")
    assert resolve_layout(given(MOE, tp=2, ep=8), 8, SHAPES[MOE]).name == "dp4.tp2+sp.ep8"
    assert resolve_axes(given(cp=2, tp=2, pp=2), 8).dp == 1


def test_when_the_tp_axis_splits_the_sequence():
    def splits(model=DENSE, **settings):
        found = layout(8, model=model, **settings)
        assert found.sequence_parallel == ("+sp" in found.name)
        return found.sequence_parallel

    assert not splits(dimensions=3) and splits(dimensions=3, sequence_parallel="on")
    assert not splits(dimensions=4, sequence_parallel="off")
    assert splits(MOE, dimensions=3) and not splits(MOE, dimensions=2)


INTERLEAVED = {"pp_schedule": "interleaved1f1b"}
# chosen settings, processes, changes of the shape, code, what the sentence has to name
BROKEN = [
    (given(pp=2, dp_shard=3), 8, {}, "processes", ("6", "8", "TRAINER_DP_SHARD=0 or 4")),
    (given(pp=3), 8, {}, "processes", ("3", "1, 2, 4, 8")),
    (given(tp=4), 8, {}, "tp-indivisible", ("TRAINER_TP=4", "kv_heads=2", "1, 2")),
    (given(tp=2), 8, {"intermediate": 11007}, "tp-indivisible", ("intermediate=11007",)),
    (given(pp=8), 8, {"layers": 7}, "pp-layers", ("TRAINER_PP=8", "8 layers", "at most 7")),
    (given(pp=4, **INTERLEAVED), 8, {"layers": 7}, "pp-layers", ("TRAINER_PP_SCHEDULE", "at most 3")),
    (given(cp=2, seq_len=2047), 8, {}, "seq-len-indivisible", ("TRAINER_SEQ_LEN=2047", "2048")),
    (given(cp=3, seq_len=2049), 6, {}, "cp-heads", ("TRAINER_CP=3", "1, 2, 4, 8, 16", "allgather")),
    (given(micro_batch_size=5, dp_shard=4), 4, {}, "batch-indivisible", ("=384", "dp=4 = 20", "380")),
    (given(global_batch_size=4, pp=2), 8, {}, "micro-batches-few", ("_SIZE=32", "11 %")),
    (given(global_batch_size=12, pp=2, **INTERLEAVED), 8, {}, "micro-batches-interleaved", ("_SIZE=16",)),
    (given(ep=2), 8, {}, "ep-dense", ("TRAINER_EP=2",)),
    (given(MOE, ep=3), 6, {}, "ep-indivisible", ("experts=128", "1, 2")),
    (given(MOE, ep=4), 6, {}, "ep-indivisible", ("dp_shard x cp x tp = 6", "1, 2")),
    (given(MOE, tp=2, sequence_parallel="off"), 8, {}, "experts-sequence", ("tp=2",)),
    (config(sequence_parallel="on"), 8, {}, "sequence-without-tp", ("TRAINER_SEQUENCE_PARALLEL",)),
    (config(dimensions=5), 8, {}, "five-dimensions-dense", ("TRAINER_DIMENSIONS=5", "at most 4")),
    (config(MOE, lora_rank=4, lora_targets="q_proj,up_proj"), 8, {}, "lora-target", ("split up_proj;",)),
    (config(lora_rank=4, lora_targets="lm_head,mlp.up_proj"), 8, {}, "lora-target", ("split lm_head;",)),
    (given("phi-3-mini", tp=2), 8, {}, "family", ("TRAINER_TP=2", "over cp, pp, dp_replicate", "tp=1")),
    (given("gpt2", pp=2, seq_len=512), 8, {}, "family", ("TRAINER_PP=2", "over cp, dp_replicate", "pp=1")),
    (given("gpt-oss-20b", ep=2), 8, {}, "family", ("TRAINER_EP=2", "over pp, dp_replicate", "ep=1")),
    (given("gemma-2-2b", cp=2), 8, {}, "family", ("TRAINER_CP=2", "over pp, tp, dp_replicate", "cp=1")),
    (given("gpt2", lora_rank=4, seq_len=512), 8, {}, "family-lora", ("TRAINER_LORA_RANK=4",)),
]


@pytest.mark.parametrize(("chosen", "processes", "changes", "code", "named"), BROKEN)
def test_a_broken_rule_names_its_setting_and_what_would_work(chosen, processes, changes, code, named):
    (found,) = problems(chosen, processes, **changes)
    assert find_codes(found) == [f"SL-nd-{code}"] and all(name in found for name in named), found


def test_what_runs_is_not_refused():
    assert not problems(given(pp=5, global_batch_size=400), 10), "uneven stages"
    assert not problems(given(cp=3, seq_len=2049, cp_method="allgather"), 6)
    assert not problems(given(cp=2, tp=2, seq_len=2046, sequence_parallel="off"), 8)
    assert not problems(given(MOE, tp=2, ep=2), 6), "uneven shards of the experts"
    assert not problems(config(lora_rank=4, lora_targets="q_proj,mlp.up_proj,self_attn.o_proj"), 8)


def test_the_command_prints_memory_by_rank(capsys):
    assert main(["--model", DENSE, "--processes", "8", "--dimensions", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pp2.dp2.tp2 ")
    rows = [line.split() for line in lines if line.startswith(("0-3", "4-7"))]
    assert rows == [
        ["0-3", "0-17", "424,656,128", "424,656,128", "849,312,256", "1.58", "1.58", "3.16", "6.33"],
        ["4-7", "18-35", "424,657,152", "424,657,152", "849,314,304", "1.58", "1.58", "3.16", "6.33"],
    ]
    assert main(["--processes", "2", "layout=given", "pp=2", "pp_schedule=interleaved1f1b"]) == 0
    assert "0-8, 18-26" in capsys.readouterr().out, "both stages of a rank"


def of(strategy: str, **settings) -> Config:
    sizes = {"global_batch_size": 48, "micro_batch_size": 1}
    return Config(**{"run": "try", "strategy": strategy} | sizes | settings)


def test_the_axis_of_the_strategy_takes_all_processes():
    assert resolve_axes(of("single"), 1) == Axes(dp_replicate=1, dp_shard=1)
    assert resolve_axes(of("ddp"), 4, 2) == Axes(dp_replicate=4, dp_shard=1)
    for strategy in ("fsdp", "zero1", "zero3"):
        assert resolve_axes(of(strategy), 3, 2).world_size == 3
    assert resolve_axes(of("fsdp"), 4, 2) == Axes(dp_replicate=1, dp_shard=4), "nodes are no matter"


@pytest.mark.parametrize(
    ("asked", "processes", "code", "named"),
    [
        (of("ddp", dp_replicate=3), 2, "SL-axes-processes", ("dp_replicate=3", "2")),
        (of("hsdp", dp_shard=3), 4, "SL-axes-processes", ("dp_replicate=1 x dp_shard=3", "1, 2, 4")),
        (of("ddp", dp_shard=2), 2, "SL-axis-unused", ("TRAINER_DP_SHARD=2", "dp_replicate")),
        (of("single", dp_shard=2), 1, "SL-axis-unused", ("TRAINER_DP_SHARD=2",)),
        (of("single"), 2, "SL-single-one-process", ("2",)),
        (
            of("ddp", global_batch_size=10, micro_batch_size=4),
            2,
            "SL-axes-batch-indivisible",
            ("TRAINER_GLOBAL_BATCH_SIZE=10", "TRAINER_MICRO_BATCH_SIZE=4", "= 8", "example 8"),
        ),
        (of("ddp", static_graph=True), 2, "SL-static-graph-accumulates", ("TRAINER_MICRO_BATCH_SIZE=24",)),
    ],
)
def test_a_broken_rule_says_what_would_work(asked, processes, code, named):
    (found,) = broken_rules(asked, processes)
    assert find_codes(found) == [code] and all(name in found for name in named), found


@pytest.mark.parametrize(
    ("degrees", "processes", "per_node", "axes"),
    [
        ({}, 8, 4, (2, 4)),
        ({}, 4, 1, (4, 1)),
        ({}, 4, 0, (1, 4)),
        ({"dp_shard": 2}, 8, 4, (4, 2)),
        ({"dp_replicate": 2}, 8, 8, (2, 4)),
    ],
)
def test_replicas_of_shards_follow_the_nodes(degrees, processes, per_node, axes):
    found = resolve_axes(of("hsdp", **degrees), processes, processes_per_node=per_node)
    assert found == Axes(dp_replicate=axes[0], dp_shard=axes[1])


def test_rules_of_mesh_and_placement_come_together():
    batch = {"global_batch_size": 9, "micro_batch_size": 3}
    asked = Config(run="x", strategy="zero3", compile=True, model="vit_tiny", dataset="synthetic", **batch)
    assert {"SL-axes-batch-indivisible", "SL-deepspeed-compile"} <= set(
        find_codes(shape_problems(asked, 2, 2))
    )
