"""Which engines are counted for an operations file."""

from __future__ import annotations

import pytest

from tests.trainer.counting.real_steps import make_config
from trainer.memory_estimation.memory_profile import Corner, group_by_engine, rows_of


def test_stages_of_a_pipeline_have_an_engine_for_each_batch():
    corners = [Corner(layers, rows, 8, 0) for layers in (4, 8) for rows in (1, 2)]
    assert [len(engine) for engine in group_by_engine(corners, 1)] == [2, 2]
    assert [len(engine) for engine in group_by_engine(corners, 2)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("seq_len", "chunk", "rows"),
    [(2048, 2048, (1, 2, 4)), (64, 2048, (1, 4, 32, 64, 128)), (64, 128, (1, 2, 4, 8))],
)
def test_micro_batches_are_counted_where_the_loss_stops_growing(seq_len, chunk, rows):
    """Its probabilities at 256 tokens, its logits at a chunk: between two counts everything grows evenly."""
    text = (
        f"model=qwen_tiny dataset=arithmetic seq_len={seq_len} loss_chunk_tokens={chunk} micro_batch_size=1"
    )
    assert rows_of(make_config(text)) == rows
