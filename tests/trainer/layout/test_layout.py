"""Degrees by processes and dimensions, and every rule that a layout can break, on the exact published shapes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from trainer.layout.axes import Axes
from trainer.layout.command import main
from trainer.layout.mesh import broken_rules, resolve_axes
from trainer.layout.resolve import KINDS, layout_problems, resolve_layout
from trainer.settings.config import Config, ConfigError
from trainer.shapes.decoder_shapes import SHAPES

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
    return layout_problems(chosen, processes, dataclasses.replace(SHAPES[chosen.model], **changes))


# Processes: names for 1 to 4 dimensions of the dense model, and 5 of the one with experts.
CHOSEN = {
    1: ("dp1", "dp1", "dp1", "dp1", "dp1"),
    2: ("dp2x1", "pp2", "pp2", "pp2", "tp2+sp.ep2"),
    3: ("dp3x1", "dp3", "dp3", "dp3", "dp3"),
    4: ("dp4x1", "pp2.dp2", "pp2.tp2", "pp2.tp2+sp", "pp2.tp2+sp.ep2"),
    6: ("dp6x1", "pp2.dp3", "pp2.dp3", "pp2.dp3", "pp2.dp3"),
    8: ("dp8x1", "pp2.dp4", "pp2.dp2.tp2", "pp2.dp2.tp2+sp", "pp2.dp2.tp2+sp.ep4"),
    12: ("dp12x1", "pp2.dp6", "pp2.dp3.tp2", "pp2.dp3.tp2+sp", "pp2.dp3.tp2+sp.ep2"),
    16: ("dp16x1", "pp2.dp8", "pp2.dp4.tp2", "pp2.dp2.cp2.tp2+sp", "pp2.dp2.cp2.tp2+sp.ep8"),
    32: ("dp32x1", "pp2.dp16", "pp2.dp8.tp2", "pp2.dp4.cp2.tp2+sp", "pp2.dp4.cp2.tp2+sp.ep8"),
}


@pytest.mark.parametrize("processes", CHOSEN)
def test_auto_chooses_by_processes_and_dimensions(processes):
    found = [layout(processes, dimensions=d, model=MOE if d == 5 else DENSE) for d in range(1, 6)]
    assert tuple(one.name for one in found) == CHOSEN[processes]
    assert all(one.axes.world_size == processes for one in found)


MISSING = {
    (1, 1): ("data",),
    (2, 1): (),
    (2, 2): ("data",),
    (2, 3): ("data", "tensor"),
    (2, 4): ("data", "tensor", "sequence"),
    (2, 5): ("data", "pipeline"),
    (4, 2): (),
    (4, 3): ("data",),
    (4, 4): ("data",),
    (4, 5): ("data",),
    (6, 3): ("tensor",),
    (6, 5): ("tensor", "sequence", "expert"),
    (8, 3): (),
    (8, 4): (),
    (8, 5): (),
    (16, 4): (),
    (16, 5): (),
}


@pytest.mark.parametrize(("processes", "dimensions"), MISSING)
def test_what_a_name_promises_and_lacks_makes_it_degenerate(processes, dimensions):
    found = layout(processes, dimensions=dimensions, model=MOE if dimensions == 5 else DENSE)
    assert found.missing == MISSING[processes, dimensions]
    assert found.degenerate == bool(found.missing) and found.dimensions == dimensions


def test_one_dimension_shards_nothing():
    for model in (DENSE, MOE):
        found = layout(8, dimensions=1, model=model)
        assert found.axes == Axes(dp_replicate=8) and not found.degenerate
    assert found.reason == "1D on 8 processes: dp_replicate 8 (plain data parallelism, nothing is sharded)"
    assert layout(1).reason.startswith("1D on 1 process: dp_replicate 1 ")


def test_the_reason_tells_each_degree():
    assert layout(8, dimensions=4).reason == (
        "4D on 8 processes: pp 2, tp 2, cp 1 (from 16 processes on; below, tp splits the sequence), "
        "dp_shard 2 (what is left)"
    )
    assert layout(6, dimensions=3).reason == (
        "3D on 6 processes: pp 2, tp 1 (2 does not divide the 3 processes left), dp_shard 3 (what is left)"
    )
    assert "pp 1 (on 2 processes a pipeline would leave the experts only one)" in (
        layout(2, dimensions=5, model=MOE).reason
    )
    assert layout(8, dimensions=5, model=MOE).reason.endswith(
        "ep 4 (128 experts, dp_shard x cp x tp = 4, at most 8)"
    )


def test_a_model_that_cannot_be_split_keeps_its_axis_whole():
    def axes(**changes):
        return resolve_layout(config(dimensions=4), 16, dataclasses.replace(SHAPES[DENSE], **changes))

    assert (
        axes(kv_heads=1).name == "pp2.dp4.cp2" and "2 does not divide kv_heads=1" in axes(kv_heads=1).reason
    )
    assert axes(layers=1).name == "dp4.cp2.tp2+sp"
    assert axes(heads=6).name == "pp2.dp4.tp2+sp" and "heads/tp=3" in axes(heads=6).reason
    by_keys = config(dimensions=4, cp_kind="allgather")
    assert resolve_layout(by_keys, 16, dataclasses.replace(SHAPES[DENSE], heads=6)).axes.cp == 2
    assert resolve_layout(config(dimensions=4, seq_len=2050), 8, SHAPES[DENSE]).name == "pp2.dp2.tp2+sp"
    assert resolve_layout(config(dimensions=4, seq_len=2050), 16, SHAPES[DENSE]).name == "pp2.dp4.tp2+sp"
    interleaved = config(dimensions=2, pp_schedule="interleaved1f1b")
    assert resolve_layout(interleaved, 4, dataclasses.replace(SHAPES[DENSE], layers=3)).name == "dp4"


def test_given_degrees_are_taken_and_dp_shard_fills_up():
    found = resolve_layout(given(pp=2, dp_replicate=2), 8, SHAPES[DENSE])
    assert (found.axes, found.name) == (Axes(pp=2, dp_replicate=2, dp_shard=2), "pp2.dp2x2")
    assert resolve_layout(given(), 3, SHAPES[DENSE]).axes == Axes(dp_shard=3)
    assert resolve_layout(given(MOE, tp=2, ep=8), 8, SHAPES[MOE]).name == "dp4.tp2+sp.ep8"
    assert resolve_layout(given(cp=2, tp=2, pp=2), 8, SHAPES[DENSE]).axes.dp == 1


def test_given_degrees_are_held_against_the_dimensions_only_where_those_are_named():
    free = resolve_layout(given(pp=2, tp=2), 4, SHAPES[DENSE])
    assert (free.dimensions, free.missing) == (2, ())
    named = resolve_layout(given(pp=2, tp=2, dimensions=4), 8, SHAPES[DENSE])
    assert (named.missing, named.sequence_parallel) == ((), True)
    lacking = resolve_layout(given(pp=2, cp=2, dimensions=4), 4, SHAPES[DENSE])
    assert lacking.missing == ("data", "tensor")
    assert resolve_layout(given(), 1, SHAPES[DENSE]).missing == ("data",)
    whole = resolve_layout(given(MOE, pp=2, dp_shard=2, cp=2, tp=2, ep=2), 16, SHAPES[MOE])
    assert (whole.dimensions, whole.missing) == (len(KINDS), ())


@pytest.mark.parametrize(
    ("model", "settings", "splits"),
    [
        (DENSE, {"dimensions": 3}, False),
        (DENSE, {"dimensions": 3, "sequence_parallel": "on"}, True),
        (DENSE, {"dimensions": 4}, True),
        (DENSE, {"dimensions": 4, "sequence_parallel": "off"}, False),
        (MOE, {"dimensions": 3}, True),
        (MOE, {"dimensions": 2}, False),
    ],
)
def test_when_the_tp_axis_splits_the_sequence(model, settings, splits):
    found = layout(8, model=model, **settings)
    assert found.sequence_parallel == splits and ("+sp" in found.name) == splits
    if settings == {"dimensions": 4, "sequence_parallel": "off"}:
        assert found.missing == ("sequence",)


# chosen settings, processes, changes of the shape, part of the one sentence
BROKEN = [
    (
        given(pp=2, dp_shard=3),
        8,
        {},
        "pp=2 x dp_replicate=1 x dp_shard=3 x cp=1 x tp=1 makes 6 processes, but there",
    ),
    (given(pp=2, dp_shard=3), 8, {}, "TRAINER_DP_SHARD=0 or 4 would fit"),
    (given(pp=3), 8, {}, "the product of those without dp_shard is 3 and must be one of 1, 2, 4, 8"),
    (given(tp=4), 8, {}, "TRAINER_TP=4: does not divide kv_heads=2 of qwen2.5-3b; expected one of 1, 2"),
    (given(tp=2), 8, {"heads": 15}, "TRAINER_TP=2: does not divide heads=15"),
    (given(tp=2), 8, {"intermediate": 11007}, "TRAINER_TP=2: does not divide intermediate=11007"),
    (given(tp=2), 8, {"vocab": 151937}, "TRAINER_TP=2: does not divide vocab=151937"),
    (given(pp=8), 8, {"layers": 7}, "TRAINER_PP=8: needs 8 layers, qwen2.5-3b has 7; expected at most 7"),
    (
        given(pp=4, pp_schedule="interleaved1f1b"),
        8,
        {"layers": 7},
        "TRAINER_PP=4 x 2 stages each (TRAINER_PP_SCHEDULE=interleaved1f1b): needs 8 layers, qwen2.5-3b has 7; "
        "expected at most 3",
    ),
    (given(cp=2, seq_len=2047), 8, {}, "TRAINER_SEQ_LEN=2047: must be a multiple of cp=2, for example 2048"),
    (
        given(cp=2, tp=2, seq_len=2046, sequence_parallel="on"),
        8,
        {},
        "TRAINER_SEQ_LEN=2046: must be a multiple of cp=2 x tp=2 (sequence parallel), for example 2048",
    ),
    (
        given(cp=3, seq_len=2049),
        6,
        {},
        "TRAINER_CP=3, TRAINER_CP_KIND=ulysses: does not divide heads/tp=16 of qwen2.5-3b; "
        "expected one of 1, 2, 4, 8, 16, or TRAINER_CP_KIND=allgather",
    ),
    (
        given(global_batch_size=42, micro_batch_size=5, dp_shard=4),
        4,
        {},
        "TRAINER_GLOBAL_BATCH_SIZE=42: must be a multiple of TRAINER_MICRO_BATCH_SIZE=5 x dp=4 = 20, "
        "for example 40",
    ),
    (
        given(global_batch_size=4, pp=2),
        8,
        {},
        "makes 1 micro-batches on dp=4, a pipeline of pp=2 needs at least 2; 8 (TRAINER_GLOBAL_BATCH_SIZE=32) "
        "would keep it idle 11 % of the time",
    ),
    (
        given(global_batch_size=12, pp=2, pp_schedule="interleaved1f1b"),
        8,
        {},
        "makes 3 micro-batches on dp=4, TRAINER_PP_SCHEDULE=interleaved1f1b needs a multiple of pp=2, "
        "for example TRAINER_GLOBAL_BATCH_SIZE=16",
    ),
    (given(ep=2), 8, {}, "TRAINER_EP=2: qwen2.5-3b has no experts; leave it out"),
    (given(MOE, ep=3), 6, {}, "TRAINER_EP=3: does not divide experts=128; expected one of 1, 2"),
    (given(MOE, ep=4), 6, {}, "TRAINER_EP=4: does not divide dp_shard x cp x tp = 6; expected one of 1, 2"),
    (
        given(MOE, tp=2, sequence_parallel="off"),
        8,
        {},
        "TRAINER_SEQUENCE_PARALLEL=off, tp=2: the experts of qwen3-30b-a3b need distinct tokens",
    ),
    (
        config(sequence_parallel="on"),
        8,
        {},
        "TRAINER_SEQUENCE_PARALLEL=on: splits the sequence on the tp axis",
    ),
    (
        config(dimensions=5),
        8,
        {},
        "TRAINER_DIMENSIONS=5: the fifth is that of the experts, and qwen2.5-3b is a",
    ),
    (given(pp=2, dimensions=5), 8, {}, "expected at most 4, or a mixture of experts such as qwen3-30b-a3b"),
    (
        config(MOE, lora_rank=4, lora_targets="q_proj,mlp.gate,up_proj"),
        8,
        {},
        "strategy nd cannot split mlp.gate, up_proj; expected some of q_proj, k_proj, v_proj, o_proj",
    ),
    (
        config(lora_rank=4, lora_targets="lm_head,mlp.up_proj"),
        8,
        {},
        "cannot split lm_head; expected some of",
    ),
    (config(lora_rank=4, lora_targets="layers.0.self_attn.q_proj"), 8, {}, "cannot split layers.0.self_attn"),
]


@pytest.mark.parametrize(("chosen", "processes", "changes", "sentence"), BROKEN)
def test_a_broken_rule_names_its_setting_and_what_would_work(chosen, processes, changes, sentence):
    found = problems(chosen, processes, **changes)
    assert len(found) == 1 and sentence in found[0], found


@pytest.mark.parametrize(
    ("chosen", "processes"),
    [
        (given(pp=3), 6),  # 36 layers on 3 stages
        (given(pp=5, global_batch_size=400), 10),  # uneven stages
        (given(cp=3, seq_len=2049, cp_kind="allgather"), 6),
        (given(cp=2, tp=2, seq_len=2046, sequence_parallel="off"), 8),
        (given(MOE, tp=4), 4),
        (given(MOE, tp=2, ep=2), 6),  # uneven shards of the experts
        (given(pp=2, global_batch_size=12), 8),
        (config(lora_rank=4, lora_targets="q_proj,mlp.up_proj,self_attn.o_proj"), 8),
    ],
)
def test_what_runs_is_not_refused(chosen, processes):
    assert problems(chosen, processes) == []


def test_all_broken_rules_are_named_at_once():
    wrong = given(
        MOE,
        tp=8,
        pp=64,
        cp=3,
        ep=3,
        sequence_parallel="off",
        global_batch_size=1,
        micro_batch_size=2,
        lora_rank=4,
        lora_targets="gate",
    )
    found = problems(wrong, 8)
    assert len(found) == 9
    with pytest.raises(ConfigError) as caught:
        resolve_layout(wrong, 8, SHAPES[MOE])
    assert caught.value.problems == found


def test_the_mesh_of_a_run_comes_from_its_layout():
    assert resolve_axes(config(dimensions=3), 8) == Axes(pp=2, dp_shard=2, tp=2)
    assert broken_rules(given(tp=4), 8) == problems(given(tp=4), 8)
    with pytest.raises(ConfigError, match="kv_heads=2"):
        resolve_axes(given(tp=4), 8)


def test_what_the_run_records():
    assert layout(4, dimensions=4).as_dict() == {
        "name": "pp2.tp2+sp",
        "dimensions": 4,
        "missing": ["data"],
        "degenerate": True,
        "sequence_parallel": True,
        "reason": layout(4, dimensions=4).reason,
    }


def test_the_command_prints_layout_reason_and_memory(capsys):
    assert main(["--model", DENSE, "--processes", "8", "--dimensions", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "pp2.dp2.tp2   qwen2.5-3b, 3.09 billion parameters",
        "why         3D on 8 processes: pp 2, tp 2, dp_shard 2 (what is left)",
        "per step    32 micro-batches of 1 x 512 tokens on dp=2",
    ]
    assert lines[4:7] == [
        "ranks  layers   parameters      trained     gathered  weights  gradients  optimizer   GiB",
        "0-3    0-17    424,656,128  424,656,128  849,312,256     1.58       1.58       3.16  6.33",
        "4-7    18-35   424,657,152  424,657,152  849,314,304     1.58       1.58       3.16  6.33",
    ]


def test_the_command_says_what_is_degenerate(capsys):
    assert main(["--model", MOE, "--processes", "2", "--dimensions", "5", "seq_len=1024"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tp2+sp.ep2 ") and "degenerate  5D without data, pipeline: kept out" in out
    assert "x 1024 tokens" in out and "\n0-1    0-47 " in out


def test_the_command_shows_both_stages_of_a_rank(capsys):
    interleaved = ["layout=given", "pp=2", "pp_schedule=interleaved1f1b"]
    assert main(["--processes", "2", *interleaved]) == 0
    assert "0-8, 18-26" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--processes", "8", "layout=given", "tp=4"], "TRAINER_TP=4: does not divide kv_heads=2"),
        (["--processes", "8", "tpp=4"], "TRAINER_TPP: unknown setting, did you mean TRAINER_TP?"),
        (["--processes", "8", "--dimensions", "6"], "TRAINER_DIMENSIONS='6'"),
        (["--processes", "8", "--model", "vit_tiny"], "TRAINER_STRATEGY=nd: trains language models"),
        (["--processes", "8", "model_path=/nowhere", "task=text"], "config.json cannot be read"),
    ],
)
def test_the_command_refuses_with_what_would_work(arguments, sentence, capsys):
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_the_command_works_without_torch():
    script = (
        "import sys; from trainer.layout.command import main; "
        "code = main(['--processes', '4']); sys.exit(code or 3 * ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0
