"""The instrument counts what the CPU's allocator records of the same steps on real tensors.

Further settings: tests/nightly/trainer/test_counting.py.
"""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import compare

QWEN = "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=64 micro_batch_size=4"
# Rows enough that what kernels take inside, which no operator shows, is below the tolerance: some 10 to 50 kB here.
VIT = "model=vit_tiny dataset=digits image_size=32 micro_batch_size=64 global_batch_size=64"
RECORDS = 3


def test_one_rank_over_gloo():
    compare_over_gloo(f"{VIT} strategy=ddp precision=fp32")


def compare_over_gloo(settings: str) -> None:
    """One of three records must be equal: what gloo's own thread is the last to hold is freed unseen.

    The profiler's switch is per thread, so a record of a busy machine can show too much (DDP's flat copy of all
    parameters, once seen), never too little, and a count that is wrong differs from all three.
    """
    for attempt in range(RECORDS):
        try:
            return run_ranks(lambda: compare(settings), 1)
        except AssertionError as different:
            if attempt == RECORDS - 1 or " recorded" not in str(different):
                raise


@pytest.mark.parametrize(
    ("settings", "ranks", "rank"),
    [
        # rows enough for what a product of bf16 numbers takes inside on a CPU (83 kB here)
        (f"{QWEN} strategy=zero2 micro_batch_size=32 global_batch_size=32", 1, 0),
        (f"{QWEN} strategy=fsdp global_batch_size=32", 8, 7),  # sharded: what is gathered is in it
    ],
)
def test_real_tensors_over_the_group_that_moves_nothing(settings, ranks, rank):
    """Not over gloo: its work objects hold buffers for a while after the collective (33 kB here with fsdp)."""
    run_ranks(lambda: compare(settings, ranks, rank, fake_group=True), 1)
