"""Recorded operations give the kernels of a step, for sizes that no recording has seen."""

import pytest

from stratlab_spec.models.pictures import find_pictures
from stratlab_spec.step_time import time_prediction
from stratlab_spec.step_time.kernels import CARDS, kernel_seconds
from stratlab_spec.step_time.recorded_work import LossPieces, _measure
from tests.trainer.counting.longer.test_recorded_steps import LLAMA
from tests.trainer.counting.real_steps import make_config
from trainer.memory_estimation.operations import Operation
from trainer.memory_estimation.record_operations import record_work
from trainer.memory_estimation.storages import replaced
from trainer.models import chunked_cross_entropy

VIT = (
    "model=vit_tiny dataset=timm/imagenet-1k model_layers=4 model_hidden=144 model_heads=3 image_size=96 "
    "micro_batch_size=5 precision=bf16"
)
CARD, DOCUMENT = CARDS["h200"], 100
SEGMENTS = {"start": "start", "2": "middle", "2 backward": "middle backward", "head": "head"}


def seconds(one: Operation) -> float:
    class Row:
        kind, launches = one.kind, one.launches
        factors, traffic = ([str(size) for size in sizes] for sizes in (one.factors, one.traffic))

    return kernel_seconds(_measure(Row, {}, LossPieces(1, 1), DOCUMENT), CARD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (f"{VIT} strategy=single", 1),
        (f"{VIT} strategy=fsdp activation_checkpointing=blocks", 2),
        (f"{LLAMA} strategy=single model_layers=4", 1),
        (f"{LLAMA} strategy=single model_layers=4 packing=false", 1),
    ],
)
def test_a_recording_gives_the_time_of_each_segment(text, ranks):
    text = text.replace("loss_chunk_tokens=300", "loss_chunk_tokens=65536")  # one chunk, as recorded
    config = make_config(f"{text} global_batch_size={10 * ranks}")
    with replaced(chunked_cross_entropy, ROWS_AT_ONCE=1000), replaced(time_prediction, ROWS_AT_ONCE=1000):
        watch = record_work(config, ranks, find_pictures(config))
        _, _, kernels = time_prediction.measure_work(config, DOCUMENT)
    for counted, recorded in SEGMENTS.items():
        whole = sum(seconds(one) for one in watch.work[counted].operations)
        found = sum(
            kernel_seconds(one, CARD) for name in (recorded, f"{recorded}+") for one in kernels.get(name, ())
        )
        assert found == pytest.approx(whole, rel=1e-6), counted
