from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from tests.trainer.data.text.token_caches import PAD, START, build, text_config
from trainer.data.batches import IGNORED, Share
from trainer.data.order import SampleOrder
from trainer.data.text.row_batches import build_text_batch, text_evaluation_batches


@pytest.fixture(scope="module", params=[True, False], ids=["packed", "padded"])
def data(request, tmp_path_factory):
    return build(text_config(tmp_path_factory.mktemp("results"), packing=request.param))


def batches(rows, ranks, step, size=48, micro=3, seed=4):
    order = SampleOrder(seed, len(rows))
    return [
        build_text_batch(rows, SampleOrder(seed, len(rows)), step, size, micro, Share(rank, ranks), "cpu")
        for rank in range(ranks)
    ], order


def lengths_of(inputs):
    """Of each document, by where a chat begins: with the turn of a user. Padding is none."""
    for ids, _ in inputs.numpy():
        begins = np.flatnonzero((ids[:-1] == START) & (ids[1:] == ord("u")))
        yield from np.diff([*begins, (ids != PAD).sum()]).tolist()


def joined(shares):
    inputs = torch.cat([x for batch in shares for x, _ in batch.micro])
    labels = torch.cat([y for batch in shares for _, y in batch.micro])
    return inputs, labels


@pytest.mark.parametrize("step", [1, 5, 70])
def test_eight_ranks_have_disjoint_shares_of_the_same_global_batch(data, step):
    rows = data.train
    shares, order = batches(rows, 8, step)
    inputs, labels = joined(shares)
    wanted_inputs, wanted_labels = rows.rows(order.indices(step, 48))
    assert (inputs.numpy() == wanted_inputs).all() and (labels.numpy() == wanted_labels).all()
    for ranks in (1, 2, 4):
        other, _ = batches(rows, ranks, step, micro=48 // ranks)
        assert all(torch.equal(a, b) for a, b in zip(joined(other), (inputs, labels), strict=True))
    for batch in shares:
        assert len(batch.micro) == 2 and batch.micro[0][0].shape == (3, 2, 128)
        assert batch.micro[0][0].dtype == batch.micro[0][1].dtype == torch.int64
        assert batch.global_samples == 48 and batch.tokens == 48 * 128
        assert batch.global_labels == (labels != IGNORED).sum()
        assert batch.useful_tokens == (inputs[:, 0] != PAD).sum()
        assert batch.token_pairs == sum(length**2 for length in lengths_of(inputs))
        assert batch.token_pairs > batch.useful_tokens


def test_an_epoch_is_every_row_once(data):
    rows, order = data.train, SampleOrder(0, len(data.train))
    seen = Counter()
    steps = -(-len(rows) // 100)
    for step in range(1, steps + 1):
        for index in order.indices(step, 100)[: len(rows) - (step - 1) * 100]:
            seen[int(index)] += 1
    assert seen == Counter(range(len(rows)))


def test_a_resumed_run_sees_what_an_uninterrupted_one_sees(data):
    rows = data.train
    through = SampleOrder(4, len(rows))
    whole = [build_text_batch(rows, through, step, 48, 8, Share(1, 2), "cpu") for step in range(1, 9)]
    resumed = SampleOrder(4, len(rows))
    for done, batch in enumerate(whole, 1):
        if done <= 5:
            resumed.batch(done, 48)  # for the hash of the order alone: no row is read
            continue
        again = build_text_batch(rows, resumed, done, 48, 8, Share(1, 2), "cpu")
        for (x, y), (x2, y2) in zip(batch.micro, again.micro, strict=True):
            assert torch.equal(x, x2) and torch.equal(y, y2)
        assert (again.global_labels, again.useful_tokens) == (batch.global_labels, batch.useful_tokens)
    assert resumed.sha256 == through.sha256


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_evaluation_counts_every_row_once_in_equally_many_batches_of_one_shape(data, ranks):
    rows = data.test
    per_rank = [list(text_evaluation_batches(rows, 5, Share(rank, ranks), "cpu")) for rank in range(ranks)]
    assert len({len(found) for found in per_rank}) == 1
    assert {tuple(x.shape) for found in per_rank for x, _ in found} == {(5, 2, 128)}
    counted = sorted(
        x.numpy().tobytes() + y.numpy().tobytes()
        for found in per_rank
        for xs, ys in found
        for x, y in zip(xs, ys, strict=True)
        if (y != IGNORED).any()
    )
    inputs, labels = rows.rows(np.arange(len(rows)))
    assert counted == sorted(x.tobytes() + y.tobytes() for x, y in zip(inputs, labels, strict=True))
