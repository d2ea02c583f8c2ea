"""What a token of a language model costs, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stratlab_spec.models.decoder import DecoderShape
from stratlab_spec.settings.config import Config
from trainer.tasks.text_task import TextTask

SHAPE = DecoderShape(
    family="qwen2",
    layers=3,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=2,
    intermediate=16,
    vocab=10,
    tied=True,
)
# per layer q 8 x 8, k and v 4 x 8, o 8 x 8, gate, up and down 16 x 8; and the head, 10 x 8
WEIGHTS = 3 * (64 + 2 * 32 + 64 + 3 * 128) + 80
ATTENTION = 12 * 3 * 8 * 64  # 12 L H Q T


@pytest.mark.parametrize(("lora_rank", "per_weight"), [(0, 6), (4, 4)])
def test_a_token_s_operations_by_hand(lora_rank, per_weight):
    config = Config(run="try", model="qwen_tiny", seq_len=64, lora_rank=lora_rank)
    task = SimpleNamespace(_config=config, _shape=SHAPE, _teacher_shape=None)
    found = TextTask.cost(task, None)  # type: ignore[arg-type]
    assert found["flops_per_token"] == per_weight * WEIGHTS + ATTENTION / 2
    assert found["flops_per_token_literature"] == per_weight * WEIGHTS + ATTENTION
    assert found["flops_per_sample"] == 64 * found["flops_per_token"]


def test_a_teacher_adds_its_forward_pass():
    config = Config(run="try", model="qwen_tiny", seq_len=64)
    task = SimpleNamespace(_config=config, _shape=SHAPE, _teacher_shape=SHAPE)
    found = TextTask.cost(task, None)  # type: ignore[arg-type]
    assert found["flops_per_token"] == (6 + 2) * WEIGHTS + (ATTENTION + ATTENTION / 3) / 2
