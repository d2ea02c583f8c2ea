"""Recorded steps against whole counts of models at full depth (reports/memory.json)."""

import json
from pathlib import Path

import pytest

from stratlab_spec.memory.profiles import GIB, Question
from stratlab_spec.memory.simulated import simulate_run

BLOCKS = {"activation_checkpointing": "blocks"}
WORDS = {
    "": {},
    "activation_checkpointing=blocks": BLOCKS,
    "checkpointing": BLOCKS,
    "chunks of 512": {"loss_chunk_tokens": "512"},
    "not packed": {"packing": "false"},
    "dp_replicate=2 dp_shard=4": {"dp_shard": "4"},
    "LoRA 16": {"lora_rank": "16", "init": "scratch"},
}
"""What a configuration's name says after model, rows and strategy -> settings."""
STRATEGIES = ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3")


def list_configurations():
    whole = json.loads(Path("reports/memory.json").read_text())["facts"]["configurations"]
    for name, one in whole.items():
        model, *words = name.split()
        rows = 4 if "qwen" in model else 32
        if words[:2] == ["1", "row"]:
            rows, words = 1, words[2:]
        strategy, others = words[0], " ".join(words[1:])
        if strategy in STRATEGIES and others in WORDS:
            alone = {"global_batch_size": "1"} if (strategy, rows) == ("single", 1) else {}
            yield pytest.param(model, strategy, rows, WORDS[others] | alone, one, id=name)


CONFIGURATIONS = list(list_configurations())


@pytest.mark.parametrize(("model", "strategy", "rows", "settings", "one"), CONFIGURATIONS)
def test_the_peak_is_as_counted(model, strategy, rows, settings, one):
    data = (
        {"dataset": "metamathqa", "seq_len": "2048"} if "qwen" in model else {"dataset": "timm/imagenet-1k"}
    )
    given = {"model": model, "strategy": strategy, "micro_batch_size": str(rows), "precision": "bf16"}
    question = Question(
        "x",
        given | data | settings,
        one["ranks"],
        one["ranks"],
        rows,
        int(settings.get("global_batch_size", 0)),
    )
    peak = simulate_run(question).peak(rows, one["ranks"]).total / GIB
    assert peak == pytest.approx(one["gib"]["peak"], rel=0.005)


def test_enough_are_compared():
    assert len(CONFIGURATIONS) >= 20


@pytest.mark.parametrize(
    ("layers", "checkpointing", "gib"),
    [(4, "none", 35.27), (8, "none", 52.77), (8, "blocks", 50.64), (16, "none", 83.15)],
)
def test_experts_under_stage_3_are_as_counted(layers, checkpointing, gib):
    """Whole counts of mixtral-8x7b on 8 ranks; layers that stay whole too long would add 1.75 GiB each."""
    settings = {
        "model": "mixtral-8x7b",
        "model_layers": str(layers),
        "strategy": "zero3",
        "dataset": "metamathqa",
        "seq_len": "2048",
        "micro_batch_size": "1",
        "precision": "bf16",
        "activation_checkpointing": checkpointing,
    }
    peak = simulate_run(Question("x", settings, 8, 8, 1, 16)).peak(1, 8).total / GIB
    assert peak == pytest.approx(gib, rel=0.001)
