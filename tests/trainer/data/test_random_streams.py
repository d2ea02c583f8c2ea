"""No two things of a run, and no two runs, draw from the same stream of random numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from stratlab_spec.settings.config import Config
from trainer.data.augmentation import draw_looks
from trainer.data.batches import SampleOrder, Share, build_batch
from trainer.tasks.image_task import ImageTask


def test_every_seed_epoch_and_step_has_a_stream_of_its_own(monkeypatch):
    """Seed 1 in epoch 0 is not seed 0 in epoch 1; the looks of step 2 are not the order of epoch 2."""
    begun: Counter[tuple[int, ...]] = Counter()
    build = np.random.default_rng

    def watch(seed):
        begun[tuple(np.random.SeedSequence(seed).generate_state(4).tolist())] += 1
        return build(seed)

    monkeypatch.setattr(np.random, "default_rng", watch)
    for seed in range(5):
        order = SampleOrder(seed, 10)
        for epoch in range(5):
            order.indices(epoch + 1, 10)
        for step in range(1, 6):
            draw_looks(
                Config(run="try", augment="all", seed=seed, global_batch_size=4, micro_batch_size=4), step
            )
    assert len(begun) == 5 * (5 + 5) and set(begun.values()) == {1}


def test_two_seeds_have_no_epoch_in_common():
    epochs = [tuple(SampleOrder(seed, 30).indices(epoch, 30)) for seed in range(4) for epoch in range(1, 5)]
    assert len(set(epochs)) == 16


@pytest.mark.parametrize("augment", ["crop_flip", "mixup"])
def test_the_run_s_seed_reaches_the_augmentation(augment):
    """The task's batch is the one of its own seed, and of no other: the same samples, other looks."""
    config = Config(
        run="try", seed=3, augment=augment, image_size=8, global_batch_size=16, micro_batch_size=16
    )
    task = ImageTask(config, Share(0, 1), "cpu")
    task.start(0)
    found = task.next_batch(2).micro[0][0]

    def with_looks_of(seed: int) -> torch.Tensor:
        order = SampleOrder(3, task.train_samples)
        other = config.model_copy(update={"seed": seed})
        return build_batch(task._data.train, order, 2, other, Share(0, 1), "cpu").micro[0][0]

    assert torch.equal(found, with_looks_of(3))
    assert not any(torch.equal(found, with_looks_of(seed)) for seed in (0, 1, 2))
