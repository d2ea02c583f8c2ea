"""What follows from a file's small counts against whole counts: another depth, batch and number of ranks."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import make_config

BAR = 0.03
TEXT = "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=64 loss_chunk_tokens=128 model_layers=14"
EXPERTS = TEXT.replace("qwen_tiny", "qwen_moe_tiny")
PICTURES = "model=vit_tiny dataset=synthetic image_size=32 model_layers=14"
CONVOLUTIONS = "model=cnn dataset=synthetic image_size=32"
PER_NODE = {"vit zeropp": 4}
CASES = {
    "decoder ddp checkpointing": f"{TEXT} strategy=ddp activation_checkpointing=blocks",
    "decoder fsdp": f"{TEXT} strategy=fsdp",
    "vit ddp": f"{PICTURES} strategy=ddp",
    "vit hsdp": f"{PICTURES} strategy=hsdp dp_replicate=2 dp_shard=4",
    "decoder nd": f"{TEXT} strategy=nd layout=given dp_replicate=4 tp=2",
    "decoder zero3": f"{TEXT} strategy=zero3 persistent_elements=1000",
    "decoder zero3 checkpointing": f"{TEXT} strategy=zero3 persistent_elements=1000 activation_checkpointing=blocks",
    "vit zero3 far ahead": f"{PICTURES} strategy=zero3 persistent_elements=1000 prefetch_blocks=4",
    "vit fsdp far ahead": f"{PICTURES} strategy=fsdp prefetch_blocks=4",
    "vit zeropp": f"{PICTURES} strategy=zeropp persistent_elements=1000",
    "decoder fsdp adapters": f"{TEXT} strategy=fsdp lora_rank=4",
    "decoder zero2 adapters not packed": f"{TEXT} strategy=zero2 lora_rank=4 packing=false",
    "decoder zero1 one micro-batch": f"{TEXT} strategy=zero1",
    "experts nd": f"{EXPERTS} strategy=nd layout=given dp_shard=8 ep=4",
    "experts nd checkpointing": f"{EXPERTS} strategy=nd layout=given dp_shard=8 activation_checkpointing=blocks",
    "decoder nd pipeline": f"{TEXT} strategy=nd layout=given dp_shard=4 pp=2",
    "cnn ddp": f"{CONVOLUTIONS} strategy=ddp",
    "cnn zero3 one micro-batch": f"{CONVOLUTIONS} strategy=zero3 persistent_elements=1000",
}
SAME_RANKS = (
    *("vit hsdp", "vit zeropp"),
    *("decoder nd", "decoder nd pipeline", "experts nd", "experts nd checkpointing"),
)
"""Their files answer for the number of ranks that was counted."""


def environment(text: str, rows: int, global_batch: int) -> dict[str, str]:
    named = dict(setting.split("=", 1) for setting in f"run=x {text}".split())
    named |= {"micro_batch_size": str(rows), "global_batch_size": str(global_batch)}
    return {f"TRAINER_{name.upper()}": value for name, value in named.items()}


@pytest.mark.parametrize("case", CASES)
def test_scaled_is_what_is_counted_whole(case, tmp_path):
    """Micro-batches of two rows on 8 ranks are asked for; whole are 6 rows on 4, or on 8, and 14 layers."""
    text, rows = CASES[case], 6
    ranks = 8 if case in SAME_RANKS else 4
    per_node, layers = PER_NODE.get(case, 8), 0 if "cnn" in case else 14
    global_batch = 16 if "one micro-batch" in case else 32

    def run() -> None:
        from stratlab.predict.operations_file import read_operations_file
        from trainer.counting.inputs import find_pictures
        from trainer.counting.operations import build_operations
        from trainer.counting.steps import count

        content = build_operations(environment(text, 2, global_batch), 8, per_node, say=lambda text: None)
        axes, micro_batches = (content["samples"][0][name] for name in ("axes", "micro_batches"))
        dp = ranks // (axes["tp"] * axes["pp"])  # ranks that see other rows
        path = tmp_path / "operations.json"
        path.write_text(json.dumps(content))
        scaled = read_operations_file(path).peak(rows, ranks, layers)
        config = make_config(f"{text} micro_batch_size={rows} global_batch_size={micro_batches * rows * dp}")
        whole = count(config, ranks, scaled.rank, find_pictures(config), per_node=min(per_node, ranks)).peak
        off = scaled.total / whole.total - 1
        assert abs(off) <= BAR, (f"{100 * off:+.2f} %", scaled.window, scaled.causes, whole.by_cause())

    run_ranks(run, 1)


@pytest.mark.parametrize(("model", "ranks", "strategy"), [("cnn", 8, "fsdp"), ("qwen_tiny", 16, "zeropp")])
def test_the_printed_command_counts_what_was_asked(model, ranks, strategy, tmp_path):
    """`stratlab predict` names it where no file answers: as it stands, and its file answers the same question."""

    def run() -> None:
        from stratlab.predict.asking import ask_of_model
        from stratlab.predict.count_command import name_count_of_model
        from stratlab.predict.operations_file import find_operations, read_operations
        from trainer.counting.command import main

        printed = name_count_of_model(model, ranks, 8, {"strategy": strategy})
        words = shlex.split(printed.replace("FOLDER", str(tmp_path)))
        assert words[:3] == ["python", "-m", "trainer.count"]
        assert main(words[3:], {}) == 0
        files = list(read_operations([tmp_path]))
        (question,) = ask_of_model(model, ranks, files, [f"strategy={strategy}"])
        assert find_operations(files, question) is files[0], files[0].misses(question)

    run_ranks(run, 1)
