"""Recorded steps give what a whole count gives, for sizes that no recording has seen."""

import pytest

from stratlab_spec.memory.step_prediction import predict_step
from stratlab_spec.models.pictures import find_pictures
from tests.trainer.counting.real_steps import make_config
from trainer.memory_estimation.steps import count

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
    ],
)
def test_a_recording_gives_the_peak_of_a_count(text, ranks, micro_batches):
    config = make_config(f"{text} global_batch_size={5 * ranks * micro_batches}")
    counted = count(config, ranks, 0, find_pictures(config)).peak.total
    predicted, _ = predict_step(config, ranks, ranks).peak
    assert predicted == pytest.approx(counted, rel=SHARE)
