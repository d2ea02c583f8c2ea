"""Rows of tokens, from how documents are packed to the batches of a rank."""

from collections import Counter

import numpy as np
import pytest
import torch

from stratlab_spec.exit_codes import DataMissing
from tests.codes import find_codes
from tests.trainer.data.text.token_caches import (
    CHAT,
    END,
    PAD,
    START,
    build,
    find_documents,
    text_config,
)
from trainer.data.batches import SampleOrder, Share, build_text_batch, text_evaluation_batches
from trainer.data.text.text_source import SPLITS, load_texts
from trainer.data.text.token_cache import cache_folder
from trainer.data.text.token_rows import IGNORED, open_text


@pytest.fixture(scope="module", params=[True, False], ids=["packed", "padded"])
def cache(request, tmp_path_factory):
    """(config, data) of arithmetic in rows of 256 bytes, where no document is cut."""
    results, some = tmp_path_factory.mktemp("results"), {"seq_len": 256, "train_samples": 400}
    config = text_config(results, packing=request.param, **some)
    return config, build(config)


def test_every_document_stands_in_one_row_and_of_its_answer_each_next_token_is_learnt(cache):
    config, data = cache
    for name, questions in load_texts(config).items():
        found = Counter()
        for document in find_documents(getattr(data, name)):
            text = document.text.rstrip("\x00")
            wanted = [IGNORED] * len(document.ids)
            if text:
                chat = CHAT.fullmatch(text)  # nothing is learnt at the place of <|im_end|>, the last one
                learnt = [*chat[2].encode(), END]
                wanted[len(text.encode()) - 1 - len(learnt) : len(text.encode()) - 1] = learnt
                found[chat[1], chat[2]] += 1
            assert document.labels == wanted
        turns = questions.read(questions.indices)
        assert found == Counter((asked.text, answer.text) for asked, answer in turns)


@pytest.mark.parametrize("cache", [True], ids=["packed"], indirect=True)
def test_bounds_are_those_of_the_fullest_row_and_the_longest_document(cache):
    for rows in (cache[1].train, cache[1].validation, cache[1].test):
        inputs, _ = rows.rows(np.arange(len(rows)))
        assert rows.most_documents() == (inputs[:, 1] == 0).sum(axis=1).max()
        assert rows.longest_document() == 1 + inputs[:, 1].max()


def test_counts_are_those_of_the_rows(cache):
    for name in SPLITS:
        rows, facts = getattr(cache[1], name), cache[1].facts[name]
        inputs, labels = rows.rows(np.arange(len(rows)))
        useful, learnt = inputs[:, 0] != PAD, labels != IGNORED
        some = np.array([3, 0, len(rows) - 1, 3])
        assert rows.label_counts(some) == learnt[some].sum() and rows.token_counts(some) == useful[some].sum()
        assert facts["labels"] == learnt.sum() and facts["tokens"] == useful.sum()
        assert learnt.sum(axis=1).min() > 0 and facts["useful_pct"] == pytest.approx(100 * useful.mean())
        assert facts["documents_cut"] == facts["documents_left_out"] == 0
        assert (rows.rows(some)[0] == inputs[some]).all() and (rows.rows(some)[1] == labels[some]).all()


def test_what_is_missing_or_damaged_is_said(tmp_path):
    config = text_config(tmp_path, train_samples=50)

    def refused() -> list[str]:
        with pytest.raises(DataMissing) as failure:
            open_text(config)
        assert str(cache_folder(config)) in str(failure.value)
        return find_codes(failure.value)

    assert refused() == ["SL-token-cache-absent"]
    folder = build(config).folder
    content = (folder / "train-ids.npy").read_bytes()
    (folder / "train-ids.npy").write_bytes(content[:-100])
    assert refused() == ["SL-token-cache-damaged"]
    (folder / "train-ids.npy").write_bytes(content)
    np.save(folder / "test-rows.npy", np.zeros((3, 3), np.int64))
    assert refused() == ["SL-token-cache-differs"]
    (folder / "index.json").write_text("{")
    assert refused() == ["SL-token-index-damaged"]


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
    return inputs, torch.cat([y for batch in shares for _, y in batch.micro])


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
