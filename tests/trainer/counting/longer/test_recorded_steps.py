"""Recorded steps give what a whole count gives, for sizes that no recording has seen."""

import pytest

from stratlab_spec.memory.step_prediction import predict_step
from stratlab_spec.models.pictures import find_pictures
from tests.trainer.counting.real_steps import make_config
from trainer.memory_estimation.steps import BLOCK_BYTES, count

LLAMA = (
    "model=llama-3.2-1b model_hidden=192 model_heads=6 model_kv_heads=2 model_intermediate=344 model_vocab=900 "
    "dataset=metamathqa seq_len=200 micro_batch_size=5 loss_chunk_tokens=300 precision=bf16"
)
SHARE = 0.001


@pytest.mark.parametrize(
    ("text", "ranks", "micro_batches"),
    [
        (f"{LLAMA} model_layers=4 strategy=single", 1, 2),
        (f"{LLAMA} model_layers=4 strategy=fsdp", 3, 2),
        (f"{LLAMA} model_layers=3 strategy=ddp lora_rank=4", 2, 1),
        (f"{LLAMA} model_layers=5 strategy=fsdp activation_checkpointing=every_2", 2, 1),
        (f"{LLAMA} model_layers=4 strategy=single activation_checkpointing=selective packing=false", 1, 1),
        (f"{LLAMA} model_layers=3 strategy=single precision=fp32", 1, 1),
        (f"{LLAMA} model_layers=3 strategy=fsdp precision=fp16", 2, 1),
        (f"{LLAMA} model_layers=3 strategy=fsdp lora_rank=4 activation_checkpointing=blocks", 2, 1),
    ],
)
def test_a_recording_gives_the_peak_of_a_count(text, ranks, micro_batches):
    config = make_config(f"{text} global_batch_size={5 * ranks * micro_batches}")
    counted = count(config, ranks, 0, find_pictures(config)).peak.total
    predicted, _ = predict_step(config, ranks, ranks).peak
    assert predicted == pytest.approx(counted, rel=SHARE)


WINDOWS = ("forward", "backward", "optimizer")
GATHERED = "persistent_elements=1000"
"""Stage 3 keeps norms only: the weights of these small models are gathered too."""
ZERO = [
    ("strategy=zero1 reduce_bucket_mib=1", 3, 2),
    ("strategy=zero1 overlap_reduction=false", 2, 1),
    ("strategy=zero2 reduce_bucket_mib=1", 3, 2),
    ("strategy=zero2 packing=false", 2, 1),
    (f"strategy=zero3 reduce_bucket_mib=1 {GATHERED}", 3, 2),
    (f"strategy=zero3 packing=false {GATHERED}", 2, 1),
    (f"strategy=zero3 activation_checkpointing=every_2 {GATHERED}", 2, 1),
    (f"strategy=zeropp {GATHERED}", 4, 2),
    ("strategy=zero2 offload=optimizer", 2, 2),
    ("strategy=zero2 precision=bf16_native reduce_bucket_mib=1 activation_checkpointing=blocks", 3, 1),
    (f"strategy=zero3 precision=bf16_native {GATHERED}", 2, 2),
    (f"strategy=zero3 precision=fp32 {GATHERED}", 3, 1),
    (f"strategy=zero3 offload=all {GATHERED}", 3, 1),
]


def test_the_last_product_of_a_recomputed_layer_may_be_left_out():
    """That of GPT-2 is torch's own, whose result no gradient needs."""
    text = "model=gpt2 model_hidden=192 model_heads=6 model_kv_heads=6 model_intermediate=344 model_vocab=900"
    text += f" model_layers=4 dataset=metamathqa seq_len=200 micro_batch_size=5 global_batch_size=10 {GATHERED}"
    config = make_config(f"{text} strategy=zero3 activation_checkpointing=blocks precision=bf16")
    counted = count(config, 2, 0, find_pictures(config)).peak.total
    predicted, _ = predict_step(config, 2, 2).peak
    assert predicted == pytest.approx(counted, rel=SHARE)


@pytest.mark.parametrize(("text", "ranks", "micro_batches"), ZERO)
def test_each_window_of_zero_is_as_counted(text, ranks, micro_batches):
    per_node = 2 if "zeropp" in text else ranks
    layers = 4 - micro_batches
    share = 0.005 if "every_2" in text else SHARE  # a gather in a recomputed layer may come a module earlier
    config = make_config(
        f"{LLAMA} model_layers={layers} {text} global_batch_size={5 * ranks * micro_batches}"
    )
    counted = count(config, ranks, 0, find_pictures(config), per_node=per_node)
    predicted = predict_step(config, ranks, per_node)
    norms = 40 * BLOCK_BYTES if "offload" in text else 0  # of each weight, left by its reduction
    for window in WINDOWS:
        whole = max(moment.total for name, moment in counted.windows.items() if name.startswith(window))
        assert predicted.windows[window][0] == pytest.approx(whole, rel=share, abs=norms), window
    assert sum(predicted.host.values()) == pytest.approx(counted.host.total, rel=SHARE)
    for cause in ("parameters", "master copies", "optimizer state"):
        whole = counted.windows["optimizer"].by_cause()[cause]
        # positions are 1,024 bytes of parameters that no recording has
        assert predicted.windows["optimizer"][1].get(cause, 0) == pytest.approx(whole, abs=1024), cause
