from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainer.data.text.token_caches import PAD, START, build, text_config
from trainer.data.batches import IGNORED, SampleOrder, Share, build_text_batch, text_evaluation_batches


@pytest.fixture(scope="module", params=[True, False], ids=["packed", "padded"])
def data(request, tmp_path_factory):
    return build(text_config(tmp_path_factory.mktemp("results"), packing=request.param, train_samples=300))


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


def test_eight_ranks_have_disjoint_shares_of_the_same_global_batch(data):
    rows, step = data.train, 5
    shares, order = batches(rows, 8, step)
    inputs, labels = joined(shares)
    wanted_inputs, wanted_labels = rows.rows(order.indices(step, 48))
    assert (inputs.numpy() == wanted_inputs).all() and (labels.numpy() == wanted_labels).all()
    for ranks in (1, 4):
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


def test_a_resumed_run_sees_what_an_uninterrupted_one_sees(data):
    """The steps that are done are counted in the hash of the order alone: no row is read."""
    rows, through, resumed = data.train, *(SampleOrder(4, len(data.train)) for _ in range(2))
    whole = [build_text_batch(rows, through, step, 48, 8, Share(1, 2), "cpu") for step in range(1, 5)]
    for step in range(1, 4):
        resumed.batch(step, 48)
    again = build_text_batch(rows, resumed, 4, 48, 8, Share(1, 2), "cpu")
    for (x, y), (x2, y2) in zip(whole[-1].micro, again.micro, strict=True):
        assert torch.equal(x, x2) and torch.equal(y, y2)
    assert resumed.sha256 == through.sha256


def test_evaluation_counts_every_row_once_in_equally_many_batches_of_one_shape(data):
    rows = data.test
    per_rank = [list(text_evaluation_batches(rows, 5, Share(rank, 3), "cpu")) for rank in range(3)]
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
