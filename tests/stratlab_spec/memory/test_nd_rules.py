"""Shares of a layer, and the stages of a pipeline: with numbers that a reader can add up."""

from typing import Any

import pytest

from stratlab_spec.layout.axes import Axes
from stratlab_spec.memory.nd_rules import (
    LayerSplit,
    SplitRules,
    StagePlan,
    StageRules,
    nd_sizes,
    simulate_stages,
)
from stratlab_spec.memory.recording import GRADIENT, LAYERS, PLAIN, Allocation, Measured, Weight
from stratlab_spec.memory.simulation import HeldMemory
from stratlab_spec.memory.step_prediction import NotRecorded, predict_step
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config

UNIT = 1 << 20
"""Bytes of each weight in fp32, and of the stream."""
SHARED: dict[str, Any] = {"shards": 2, "moments": 2, "update_copies": 0, "half": True}


def make_config(text: str) -> Config:
    given = "run=x model=llama-3.2-1b dataset=metamathqa precision=bf16 strategy=nd layout=given"
    named = dict(setting.split("=", 1) for setting in f"{given} {text}".split())
    return Config.from_env({f"TRAINER_{name.upper()}": value for name, value in named.items()})


def weight(name: str) -> list[Weight]:
    return [Weight(name, (UNIT // 4,), True, True)]


def take(size: int) -> Allocation:
    return Allocation(True, PLAIN, "activations", size)


def free(size: int) -> Allocation:
    return Allocation(False, PLAIN, "activations", size)


NEW, END = Allocation(True, GRADIENT, "gradients", UNIT), Allocation(False, GRADIENT, "gradients", UNIT)
LAYER, BACK = [take(3 * UNIT)], [free(3 * UNIT), NEW, END]
STEP = Measured(
    segments={
        "start": [take(UNIT)],
        **{name: LAYER for name in LAYERS},
        "head": [take(UNIT)],
        "head backward": [free(UNIT), NEW, END],
        **{f"{name} backward": BACK for name in LAYERS},
        "start backward": [free(UNIT), NEW, END],
    },
    weights={"start": weight("embedding"), "layer": weight("w"), "head": weight("head")},
    data_bytes=0,
)
"""A layer keeps three streams until its backward pass; a stream or its gradient is between two layers."""


def run_stages(schedule: str, micro_batches: int, layers: int = 4, pp: int = 2):
    return simulate_stages(STEP, layers, Axes(pp=pp, dp_shard=2), schedule, micro_batches, UNIT, SHARED)


def test_a_rank_has_its_share_of_heads_words_and_tokens():
    config = make_config("seq_len=1024 micro_batch_size=3")
    sizes, chunks = nd_sizes(config, read_shape(config), LayerSplit(4, True, 2, "ulysses"))
    named = {name: sizes[name] for name in ("A", "G", "V", "U", "T", "S", "T/tp", "A/cp", "G/cp", "Q")}
    assert named == {
        "A": 8, "G": 2, "V": 32064, "U": 128256, "T": 512, "S": 1024, "T/tp": 128, "A/cp": 4, "G/cp": 1, "Q": 1536,
    }  # fmt: skip
    assert chunks == 1


@pytest.mark.parametrize(
    ("schedule", "index", "passes"),
    [("1f1b", 0, "FFFBFBFBFBBB"), ("1f1b", 2, "FBFBFBFB"), ("gpipe", 1, "FFFFFFBBBBBB")],
)
def test_a_stage_waits_for_the_stages_after_it(schedule, index, passes):
    assert StagePlan(index, 3, 2, UNIT).list_passes(schedule, 6) == passes


def test_the_first_stage_holds_activations_of_both_micro_batches_in_flight():
    """State: three weights of 2 shards, twice as moments, and one buffer of gradients per micro-batch.

    Gathered: three weights of 2 bytes. The first backward pass has left three gradients when two further micro-batches
    keep an embedding and two layers each.
    """
    peak, causes = run_stages("1f1b", 3).peak
    assert causes["parameters"] == 3 * UNIT // 2
    assert causes["optimizer state"] == 3 * UNIT
    assert causes["other"] == 3 * UNIT
    assert causes["gathered"] == 3 * UNIT // 2
    assert causes["gradients"] == 3 * UNIT
    assert causes["activations"] == 2 * 7 * UNIT
    assert peak == sum(causes.values())


def test_gpipe_holds_activations_of_all_micro_batches():
    assert run_stages("gpipe", 6).peak[1]["activations"] >= 6 * 7 * UNIT
    assert run_stages("1f1b", 6).peak[1]["activations"] < 3 * 7 * UNIT


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("pp", [2, 4])
def test_after_a_step_no_activation_is_left(schedule, pp):
    _, causes = run_stages(schedule, 8, layers=8, pp=pp).windows["optimizer"]
    left = {cause: causes[cause] for cause in ("activations", "gathered", "gradient buckets")}
    assert left == dict.fromkeys(left, 0)


def test_gradients_of_a_stage_are_reduced_to_its_shards_once():
    rules = StageRules(blocks=[weight("w")] * 2, root=weight("head"), accumulates=False, **SHARED)
    held = HeldMemory()
    for layer in (-1, 0, 1):
        rules.enter(held, "start" if layer < 0 else "middle", layer)
    rules.end_forward(held)
    assert held.held["gathered"] == 3 * UNIT // 2
    for layer in (-1, 0, 1):
        rules.enter(held, "head backward" if layer < 0 else "middle backward", layer)
        rules.take_gradient(held, UNIT)
    assert held.held["gradients"] == 3 * UNIT
    rules.end_backward()
    rules.take_gradient(held, UNIT)  # added
    assert held.held["gradients"] == 3 * UNIT
    rules.reduce(held)
    assert held.held["gradients"] == 3 * UNIT // 2
    assert held.held["gathered"] == 0


def test_a_head_whose_gradient_is_made_forward_holds_it_until_its_backward_pass():
    rules = StageRules(blocks=[], root=weight("head"), accumulates=False, **SHARED)
    held = HeldMemory()
    for _ in range(2):
        rules.enter(held, "head", -1)
        rules.take_gradient(held, UNIT)
    seen = []
    for _ in range(2):
        rules.enter(held, "head backward", -1)
        rules.end_backward()
        seen.append(held.held["gradients"])
    assert seen == [2 * UNIT, UNIT]  # the second one is added to the first


def test_a_gradient_of_all_words_becomes_one_of_its_own_words():
    rules = SplitRules(blocks=[], root=weight("embedding"), accumulates=False, **SHARED)
    held = HeldMemory()
    rules.enter(held, "start", -1)
    rules.take_gradient(held, 4 * UNIT)
    rules.leave(held, "start backward", -1)
    assert held.held["gradients"] == UNIT // 2
    assert held.fullest[""][1]["gradients"] == 5 * UNIT


@pytest.mark.parametrize(
    "text",
    [
        "pp=2 pp_schedule=interleaved1f1b",
        "pp=2 activation_checkpointing=every_2",
        "pp=2 precision=fp32",
        "pp=2 lora_rank=8 init=scratch",
        "tp=2 lora_rank=8 init=scratch",
        "accumulate=whole",
        "cp=4 tp=4 cp_method=ulysses",
        "model=qwen3-30b-a3b tp=2",
        "model=gemma-2-2b tp=2",
    ],
)
def test_what_the_rules_do_not_know_is_not_recorded(text):
    config = make_config(f"micro_batch_size=1 global_batch_size=32 {text}")
    with pytest.raises(NotRecorded):
        predict_step(config, 16, 16)
