"""Times of steps from recorded operations, against measured ones and against each other."""

from __future__ import annotations

import pytest

from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time import time_prediction
from stratlab_spec.step_time.host_work import Host
from stratlab_spec.step_time.kernels import CARDS
from stratlab_spec.step_time.time_prediction import StepTime, predict_step_time


def predict(
    text: str, ranks: int = 1, per_node: int = 8, card: str = "h200", host: Host | None = None
) -> StepTime:
    given = "run=x dataset=timm/imagenet-1k model=vit_base strategy=single precision=bf16"
    named = dict(one.split("=", 1) for one in f"{given} micro_batch_size=256 {text}".split())
    named.setdefault("global_batch_size", str(int(named["micro_batch_size"]) * ranks))
    config = Config.from_env({f"TRAINER_{name.upper()}": value for name, value in named.items()})
    return predict_step_time(config, ranks, min(ranks, per_node), CARDS[card], host)


@pytest.mark.parametrize(
    ("text", "card", "ms"),
    [
        ("", "h200", 89.6),
        ("strategy=ddp", "h200", 90.1),
        ("compile=true", "h200", 71.2),
        ("", "h100", 97.8),
        ("activation_checkpointing=blocks", "h200", 116.2),
        ("model=vit_huge micro_batch_size=64", "h200", 170.4),
    ],
)
def test_steps_of_image_models(text: str, card: str, ms: float) -> None:
    """Within 8 % of benchmarks/gpu/measured, medians of steps before the profiler, one GPU."""
    assert predict(text, card=card).step_ms == pytest.approx(ms, rel=0.08)


def test_a_slow_host_bounds_small_batches() -> None:
    """With 2 images the host needs longer than the device; twice as slow a host takes nearly twice as long."""
    small = "micro_batch_size=2"
    usual, slow = (predict(small, host=Host(scale=scale)) for scale in (1.0, 2.0))
    assert usual.timeline.idle_s > 0.5 * usual.timeline.step_s
    assert slow.step_ms == pytest.approx(2 * usual.step_ms, rel=0.1)


def test_long_rows_are_one_document() -> None:
    """Tokens per second fall as attention grows; up to 4,096 tokens they do not, because documents are short."""
    text = "model=qwen2.5-0.5b dataset=metamathqa micro_batch_size=1 activation_checkpointing=blocks"
    ms = {length: predict(f"{text} seq_len={length}").step_ms for length in (2048, 4096, 32768)}
    assert ms[4096] < 2 * ms[2048] and ms[32768] > 1.5 * 8 * ms[4096]


def test_two_micro_batches_take_less_than_two_steps() -> None:
    """They share one update."""
    one, two = predict(""), predict("global_batch_size=512")
    assert one.step_ms < two.step_ms < 2 * one.step_ms


@pytest.mark.parametrize("text", ["", "strategy=fsdp", "strategy=zero3 micro_batch_size=2", "compile=true"])
def test_many_micro_batches_are_extended_from_the_last_played_ones(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = f"{text} micro_batch_size=4 global_batch_size=160"
    extended = predict(many, ranks=1 if text in ("", "compile=true") else 2)
    monkeypatch.setattr(time_prediction, "MOST_PLAYED", 1000)
    played = predict(many, ranks=1 if text in ("", "compile=true") else 2)
    assert extended.step_ms == pytest.approx(played.step_ms, rel=1e-6)
    assert extended.timeline.idle_s == pytest.approx(played.timeline.idle_s, rel=1e-3, abs=1e-6)


def test_collectives_hide_behind_a_backward_pass_in_a_node_and_not_between_many() -> None:
    one, node = predict("strategy=ddp"), predict("strategy=ddp", ranks=8)
    assert node.step_ms == pytest.approx(one.step_ms, rel=0.05)
    slow = predict("strategy=fsdp", ranks=512)
    assert slow.timeline.exposed_s > 0.2 * slow.timeline.step_s


def test_shards_update_less() -> None:
    """AdamW of a shard of 64 moves a 64th."""
    whole, shard = (predict("strategy=fsdp", ranks=ranks).timeline.phases["optimizer"] for ranks in (2, 64))
    assert shard < whole


def test_settings_without_operations_are_named() -> None:
    with pytest.raises(NotRecorded, match="fp32"):
        predict("precision=fp32")


def test_frozen_weights_are_gathered_and_not_reduced() -> None:
    """With LoRA the adapters' gradients are less than a tenth of the weights'."""
    llama = "model=llama-3.2-1b dataset=metamathqa seq_len=512 micro_batch_size=1"
    seconds = {
        (strategy, lora): predict(f"{llama} strategy={strategy}{lora}", ranks=64).timeline.collective_s
        for strategy in ("ddp", "fsdp")
        for lora in ("", " lora_rank=8 init=scratch")
    }
    shares = [seconds[name, " lora_rank=8 init=scratch"] / seconds[name, ""] for name in ("ddp", "fsdp")]
    assert shares[0] < 0.1
    assert 0.3 < shares[1] < 0.8
