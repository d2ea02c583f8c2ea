"""The counting instrument on further settings."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.ranks.real_steps import compare
from tests.trainer.counting.ranks.test_against_allocator import QWEN, VIT, compare_over_gloo
from tests.trainer.counting.ranks.test_count import check_composition


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
        ("strategy=zero3 model=qwen_moe_tiny global_batch_size=16", 3),
        ("strategy=hsdp dp_replicate=2 dp_shard=4 global_batch_size=16 precision=fp16", 3),
    ],
)
def test_compositions_can_be_counted(settings, rank):
    check_composition(settings, rank)
