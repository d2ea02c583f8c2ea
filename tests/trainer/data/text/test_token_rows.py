"""Rows of tokens, from how documents are packed to the batches of a rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stratlab_spec.exit_codes import DataMissing
from tests.codes import find_codes
from tests.trainer.data.text.token_caches import (
    CHAT,
    END,
    PAD,
    START,
    build,
    documents_of,
    find_documents,
    text_config,
    write_jsonl,
)
from trainer.data.batches import SampleOrder, Share, build_text_batch, text_evaluation_batches
from trainer.data.text import token_cache as cache_module
from trainer.data.text.text_source import SPLITS, load_texts
from trainer.data.text.token_cache import cache_folder, pack_lengths
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


def test_positions_say_what_attention_may_see(cache):
    """Packed: every document and the padding apart. Padded: one document, and positions go on behind it."""
    config, data = cache
    inputs, _ = data.train.rows(np.arange(len(data.train)))
    documents = documents_of(inputs)
    if not config.packing:
        assert (documents == 0).all()
        return
    starts = (inputs[:, 0] == START) & (np.roll(inputs[:, 0], 1, axis=1) == END)
    starts[:, 0] = True
    is_pad = inputs[:, 0] == PAD
    starts |= is_pad & ~np.roll(is_pad, 1, axis=1)
    truth = np.maximum.accumulate(np.where(starts, np.arange(config.seq_len), 0), axis=1)
    assert (documents == truth).all() and starts.sum(axis=1).max() >= 4


@pytest.mark.parametrize("cache", [True], ids=["packed"], indirect=True)
def test_bounds_are_those_of_the_fullest_row_and_the_longest_document(cache):
    """Of what the rows hold, padding included: no micro-batch has more, and one has as many."""
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


def test_cut_documents_fill_their_row_and_are_counted(tmp_path):
    rows = [{"query": f"{i}?", "response": "a" * (1, 21, 61)[i % 3]} for i in range(300)]
    rows += [{"query": f"{i}" + "q" * 100, "response": "a"} for i in range(100)]
    path = write_jsonl(tmp_path / "math" / "train.jsonl", rows)
    data = build(text_config(tmp_path, dataset_path=str(path), seq_len=64))
    facts = Counter()
    for split in data.facts.values():
        facts.update({key: split[key] for key in split if key.startswith("documents")})
    # 61 characters do not fit behind a prompt of 21 tokens or more
    assert facts == {"documents": 300, "documents_left_out": 100, "documents_cut": 100}
    lengths = [len(d.ids) for d in find_documents(data.train) if d.ids[0] != PAD and d.ids[-1] != END]
    assert set(lengths) == {64}


def test_ids_above_16_bits_have_room(tmp_path, monkeypatch):
    """As those of Qwen's 151,646 tokens."""
    for vocab, dtype in ((1 << 16, np.uint16), (151_646, np.uint32)):
        monkeypatch.setattr(cache_module, "count_vocabulary", lambda tokenizer, vocab=vocab: vocab)
        data = build(text_config(tmp_path / str(vocab), train_samples=50))
        assert np.load(data.folder / "train-ids.npy").dtype == dtype and data.vocab == vocab


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


def fill(lengths, seq_len):
    """(useful share of the places, the best that any packing could reach), after checking that it is a packing."""
    order, counts = pack_lengths(lengths, seq_len)
    assert sorted(order) == list(range(len(lengths))), "every document once"
    assert counts.sum() == len(lengths) and counts.min() > 0
    used = np.add.reduceat(lengths[order], np.cumsum(counts) - counts)
    assert used.max() <= seq_len
    fewest = fewest_rows(lengths, seq_len)
    return lengths.sum() / (len(counts) * seq_len), lengths.sum() / (fewest * seq_len)


def fewest_rows(lengths, seq_len):
    """No packing needs fewer: the bound L2 of Martello and Toth (1990).

    For any k: documents longer than seq_len - k share a row with none from k up, those above half a row not with each
    other, and what those leave free is all there is for the documents from k to half a row without further rows.
    """
    bounds = [-(-lengths.sum() // seq_len)]
    for k in range(1, seq_len // 2 + 1):
        alone = lengths > seq_len - k
        large = (2 * lengths > seq_len) & ~alone
        small = (2 * lengths <= seq_len) & (lengths >= k)
        free = large.sum() * seq_len - lengths[large].sum()
        bounds.append(alone.sum() + large.sum() + max(0, -(-(lengths[small].sum() - free) // seq_len)))
    return max(bounds)


@pytest.mark.parametrize(
    ("kind", "seq_len"), [("lognormal", 2048), ("pareto", 1024), ("uniform", 512), ("two humps", 512)]
)
def test_99_percent_of_the_possible_on_long_tails(kind, seq_len):
    random = np.random.default_rng(3)
    drawn = {
        "lognormal": random.lognormal(5.4, 0.6, 3000),  # about MetaMathQA's: median 220, some above 1000
        "pareto": 30 * (1 + random.pareto(1.2, 3000)),
        "uniform": random.uniform(16, 400, 3000),
        "two humps": np.concatenate([random.normal(60, 15, 1500), random.normal(400, 60, 1500)]),
    }[kind]
    useful, possible = fill(np.clip(drawn, 16, seq_len).astype(np.int64), seq_len)
    assert useful >= 0.99 * possible, (useful, possible)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=120))
def test_any_lengths(lengths):
    useful, possible = fill(np.array(lengths), 40)
    assert useful > 0.5 * possible


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
