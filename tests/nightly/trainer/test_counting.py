"""The counting instrument on further settings."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import QWEN as SMALL
from tests.trainer.counting.real_steps import compare, count_it
from tests.trainer.counting.slow.test_against_allocator import QWEN, VIT, compare_over_gloo


@pytest.mark.parametrize(
    "settings",
    [
        f"{QWEN} strategy=single global_batch_size=4",
        f"{VIT} strategy=zero1 precision=bf16",
        f"{VIT} strategy=zero2 precision=bf16",
    ],
)
def test_one_rank_over_gloo(settings):
    compare_over_gloo(settings)


@pytest.mark.parametrize(
    "settings",
    [
        f"{QWEN} strategy=fsdp global_batch_size=8",
        f"{VIT} strategy=fsdp precision=bf16",
        f"{VIT} strategy=zero3 precision=bf16",
    ],
)
def test_real_tensors_over_the_group_that_moves_nothing(settings):
    run_ranks(lambda: compare(settings, 1, 0, fake_group=True), 1)


@pytest.mark.parametrize(
    ("settings", "rank"),
    [
        ("strategy=fsdp activation_checkpointing=blocks global_batch_size=16", 1),
        ("strategy=nd layout=given dp_shard=8 ep=4 model=qwen_moe_tiny global_batch_size=16", 5),
        ("strategy=nd layout=given pp=2 cp=2 dp_shard=2 pp_schedule=interleaved1f1b global_batch_size=16", 4),
        ("strategy=zero3 model=qwen_moe_tiny global_batch_size=16", 3),
        ("strategy=hsdp dp_replicate=2 dp_shard=4 global_batch_size=16 precision=fp16", 3),
    ],
)
def test_compositions_can_be_counted(settings, rank):
    def run() -> None:
        found = count_it(f"{SMALL} {settings}", rank=rank)
        assert found.peak.total > found.between.total > 0
        assert found.between.by_cause()["activations"] == 0

    run_ranks(run, 1)
