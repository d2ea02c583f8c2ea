"""Recorded steps of strategy nd give what a whole count of the fullest rank gives."""

import pytest

from stratlab_spec.memory.step_prediction import predict_step
from stratlab_spec.models.pictures import find_pictures
from tests.trainer.counting.longer.test_recorded_steps import SHARE
from tests.trainer.counting.real_steps import make_config
from trainer.memory_estimation.steps import count

LLAMA = (
    "model=llama-3.2-1b model_hidden=384 model_heads=12 model_kv_heads=4 model_intermediate=344 model_vocab=900 "
    "dataset=metamathqa seq_len=208 loss_chunk_tokens=300 precision=bf16 strategy=nd layout=given"
)


@pytest.mark.parametrize(
    ("text", "ranks", "batch"),
    [
        ("model_layers=3 micro_batch_size=5 dp_shard=2", 2, 10),
        ("model_layers=2 micro_batch_size=3 tp=2 sequence_parallel=on", 2, 3),
        ("model_layers=2 micro_batch_size=3 cp=2 cp_method=ulysses tp=2 sequence_parallel=off", 4, 3),
        ("model_layers=2 micro_batch_size=3 cp=2 cp_method=allgather packing=false", 4, 6),
        ("model_layers=4 micro_batch_size=3 pp=2", 4, 18),
        ("model_layers=4 micro_batch_size=2 pp=2 pp_schedule=gpipe activation_checkpointing=blocks", 2, 4),
    ],
)
def test_a_recording_gives_the_peak_of_a_count(text, ranks, batch):
    config = make_config(f"{LLAMA} {text} global_batch_size={batch}")
    predicted = predict_step(config, ranks, ranks)
    counted = count(config, ranks, predicted.rank, find_pictures(config)).peak.total
    assert predicted.peak[0] == pytest.approx(counted, rel=SHARE)
