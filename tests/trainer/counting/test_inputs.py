"""The micro-batch that is counted has the shape of the run's own."""

from __future__ import annotations

import pytest
import torch

from stratlab_spec.settings.config import Config
from trainer.memory_estimation.steps import Pictures, build_micro_batch


@pytest.mark.parametrize(
    ("settings", "inputs", "labels"),
    [
        ({}, (3, 1, 16, 16), ((3,), torch.int64)),
        ({"augment": "mixup"}, (3, 1, 16, 16), ((3, 10), torch.float32)),
        ({"model": "qwen_tiny", "seq_len": 24}, (3, 2, 24), ((3, 24), torch.int64)),
    ],
)
def test_a_micro_batch_of_three(settings: dict, inputs: tuple, labels: tuple) -> None:
    image_size = {} if "seq_len" in settings else {"image_size": 16}
    config = Config(run="x", micro_batch_size=3, global_batch_size=6, **image_size, **settings)
    made = build_micro_batch(config, Pictures(10, 1))
    assert tuple(made[0].shape) == inputs and (tuple(made[1].shape), made[1].dtype) == labels
