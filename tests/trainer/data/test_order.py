from __future__ import annotations

import numpy as np

from stratlab_spec.settings.config import Config
from trainer.data.batches import IGNORED, SampleOrder, Share, build_batch, evaluation_batches
from trainer.data.images import Images

IN_TWOS = Config(run="try", global_batch_size=6, micro_batch_size=2)


def numbered(count: int) -> Images:
    """Images whose label is their index."""
    return Images(lambda i: np.full((1, 2, 2), i % 256, np.uint8), np.arange(count), (1, 2, 2))


def labels(ranks: int, micro: int, step: int) -> list[int]:
    images = numbered(100)
    sizes = Config(run="try", global_batch_size=24, micro_batch_size=micro)
    found = []
    for rank in range(ranks):
        batch = build_batch(images, SampleOrder(7, 100), step, sizes, Share(rank, ranks), "cpu")
        assert batch.global_samples == 24 and all(len(y) == micro for _, y in batch.micro)
        found += [int(y) for _, ys in batch.micro for y in ys]
    return found


def test_every_world_size_takes_the_same_samples_in_a_step():
    for step in (1, 4, 5):  # step 5 crosses into the second epoch
        assert labels(1, 24, step) == labels(2, 12, step) == labels(3, 2, step) == labels(4, 3, step)


def test_every_sample_comes_once_per_epoch_across_batches():
    order = SampleOrder(0, 10)
    seen = np.concatenate([order.batch(step, 4) for step in range(1, 6)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert list(seen[:10]) != list(seen[10:])


def test_the_hash_tells_two_orders_apart():
    def sha(seed: int, steps: int) -> str:
        order = SampleOrder(seed, 50)
        for step in range(1, steps + 1):
            order.batch(step, 8)
        return order.sha256

    assert sha(1, 3) == sha(1, 3) != sha(1, 4)
    assert sha(1, 3) != sha(2, 3)


def test_evaluation_counts_every_sample_once_and_gives_all_ranks_equally_many_batches():
    images, seen, rounds = numbered(11), [], []
    for rank in range(3):
        batches = list(evaluation_batches(images, IN_TWOS, Share(rank, 3), "cpu"))
        rounds.append(len(batches))
        seen += [int(y) for _, ys in batches for y in ys if y != IGNORED]
    assert sorted(seen) == list(range(11)) and rounds == [2, 2, 2]
