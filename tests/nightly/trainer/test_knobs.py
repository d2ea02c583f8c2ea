"""What a strategy's knobs make of its memory, counted on a model small enough to add up by hand."""

from __future__ import annotations

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import count_it

QWEN = "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=64 micro_batch_size=2"
TWICE = f"{QWEN} global_batch_size=32"  # two micro-batches on 8 ranks
WHOLE = 4 * 169024
"""Bytes of all gradients of qwen_tiny."""


def causes(text: str) -> dict[str, int]:
    return count_it(text).peak.by_cause()


def test_ddp_holds_its_gradients_once():
    def run() -> None:
        twice, once = causes(f"{TWICE} strategy=ddp"), causes(f"{QWEN} strategy=ddp global_batch_size=16")
        for found in (twice, once):
            assert WHOLE <= found["gradient buckets"] < 1.05 * WHOLE, "the buckets, which stay"
            assert found["gradients"] < WHOLE / 4, "none beside them but what a layer has just made"

    run_ranks(run, 1)


def test_what_accumulates_is_sharded_or_whole_under_every_strategy_alike():
    def run() -> None:
        def held(text: str) -> int:
            found = causes(text)  # what replicas have yet to add up is still in a bucket
            return found["gradients"] + found["gradient buckets"]

        for strategy in ("fsdp", "hsdp dp_replicate=2 dp_shard=4", "nd layout=given dp_shard=8"):
            shards = 4 if "hsdp" in strategy else 8
            sharded = held(f"{TWICE} strategy={strategy}")
            whole = held(f"{TWICE} strategy={strategy} accumulate=whole")
            assert WHOLE / shards <= sharded < WHOLE / 2, (strategy, sharded)
            assert whole > 0.9 * WHOLE, (strategy, whole)

    run_ranks(run, 1)


def test_what_is_gathered():
    def run() -> None:
        zero3 = "zero3 persistent_elements=0"
        for strategy in ("fsdp", zero3, f"{zero3} precision=fp32", f"{zero3} precision=bf16_native"):
            block = count_it(f"{TWICE} strategy={strategy}").gathered_bytes
            kept = count_it(f"{TWICE} strategy={strategy} reshard_after_forward=off").gathered_bytes
            assert block < 0.7 * kept and kept > 0.5 * WHOLE, (strategy, block, kept)

    run_ranks(run, 1)


def test_less_is_kept_the_more_is_computed_again():
    def run() -> None:
        text = f"{QWEN} global_batch_size=16 strategy=fsdp seq_len=256 activation_checkpointing"
        kinds = ("none", "selective", "every_2", "blocks")
        none, selective, second, blocks = (causes(f"{text}={kind}")["activations"] for kind in kinds)
        assert blocks < second < none and blocks < selective < none

    run_ranks(run, 1)
