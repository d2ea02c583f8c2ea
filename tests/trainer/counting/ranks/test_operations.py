"""What follows from a file's small counts against whole counts: another depth, batch and number of ranks."""

from __future__ import annotations

import json

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.ranks.real_steps import make_config

BAR = 0.03
TEXT = "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=64 loss_chunk_tokens=128 model_layers=14"
EXPERTS = TEXT.replace("qwen_tiny", "qwen_moe_tiny")
PICTURES = "model=vit_tiny dataset=synthetic image_size=32 model_layers=14"
CNN = "model=cnn dataset=synthetic image_size=32"
CASES = {
    "decoder ddp": f"{TEXT} strategy=ddp",
    "decoder ddp checkpointing": f"{TEXT} strategy=ddp activation_checkpointing=blocks",
    "decoder fsdp": f"{TEXT} strategy=fsdp",
    "decoder fsdp not packed": f"{TEXT} strategy=fsdp packing=false",
    "decoder fsdp every second": f"{TEXT} strategy=fsdp activation_checkpointing=every_2",
    "decoder zero2": f"{TEXT} strategy=zero2",
    "decoder zero2 LoRA": f"{TEXT} strategy=zero2 lora_rank=4",
    "decoder zero3": f"{TEXT} strategy=zero3",
    "decoder pipeline": f"{TEXT} strategy=nd layout=given pp=2 dp_shard=4",
    "experts nd": f"{EXPERTS} strategy=nd layout=given dp_shard=8",
    "decoder fsdp LoRA": f"{TEXT} strategy=fsdp lora_rank=4",
    "vit ddp": f"{PICTURES} strategy=ddp",
    "vit fsdp checkpointing": f"{PICTURES} strategy=fsdp activation_checkpointing=blocks",
    "vit zero1": f"{PICTURES} strategy=zero1",
    "cnn ddp": f"{CNN} strategy=ddp",
    "cnn zero2": f"{CNN} strategy=zero2",
}


def environment(text: str, rows: int, global_batch: int) -> dict[str, str]:
    named = dict(setting.split("=", 1) for setting in f"run=x {text}".split())
    named |= {"micro_batch_size": str(rows), "global_batch_size": str(global_batch)}
    return {f"TRAINER_{name.upper()}": value for name, value in named.items()}


@pytest.mark.parametrize("micro_batches", [1, 2], ids=["once", "accumulation"])
@pytest.mark.parametrize("case", CASES)
def test_scaled_is_what_is_counted_whole(case, micro_batches, tmp_path):
    text = CASES[case]
    rows, scales_ranks = 6, "strategy=nd" not in text
    ranks = 4 if scales_ranks else 8
    several = micro_batches * (2 if "pp=2" in text else 1)
    dp = ranks // (2 if "pp=2" in text else 1)

    def run() -> None:
        from stratlab.predict.operations_file import read_operations_file
        from trainer.counting.inputs import find_pictures
        from trainer.counting.operations import build_operations
        from trainer.counting.steps import count

        of_eight = environment(text, 2, several * 2 * (8 if scales_ranks else dp))
        content = build_operations(of_eight, 8, 8, say=lambda text: None)
        path = tmp_path / "operations.json"
        path.write_text(json.dumps(content))
        file = read_operations_file(path)
        scaled = file.peak(rows, ranks)
        config = make_config(f"{text} micro_batch_size={rows} global_batch_size={several * rows * dp}")
        whole = [
            count(config, ranks, rank, find_pictures(config))
            for rank in ((0, ranks - 1) if "pp=2" in text else (0,))
        ]
        most = max(whole, key=lambda one: one.peak.total)
        off = scaled.total / most.peak.total - 1
        found = {name: size for name, size in most.peak.by_cause().items() if size}
        assert abs(off) <= BAR, (f"{100 * off:+.2f} %", scaled.window, scaled.causes, found)
        print(f"{case} {micro_batches}: {100 * off:+.3f} %")

    run_ranks(run, 1)


def test_the_fullest_window_is_the_peak():
    def run() -> None:
        from trainer.counting.inputs import find_pictures
        from trainer.counting.steps import count

        config = make_config(f"{TEXT} strategy=fsdp micro_batch_size=2 global_batch_size=32")
        found = count(config, 8, 0, find_pictures(config))
        assert max(one.total for one in found.windows.values()) == found.peak.total
        assert {"forward", "backward", "optimizer"} <= found.windows.keys()

    run_ranks(run, 1)
