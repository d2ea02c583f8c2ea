from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

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
from trainer.data.batches import IGNORED
from trainer.data.text import token_cache as cache_module
from trainer.data.text import token_rows as rows_module
from trainer.data.text.text_source import SPLITS, load_questions
from trainer.data.text.token_cache import cache_folder
from trainer.data.text.token_rows import open_text


@pytest.fixture(scope="module", params=[True, False], ids=["packed", "padded"])
def cache(request, tmp_path_factory):
    """(config, data) of arithmetic in rows of 256 bytes, where no document is cut."""
    results, some = tmp_path_factory.mktemp("results"), {"seq_len": 256, "train_samples": 400}
    config = text_config(results, packing=request.param, **some)
    return config, build(config)


def test_every_document_stands_in_one_row_and_of_its_answer_each_next_token_is_learnt(cache):
    config, data = cache
    for name, questions in load_questions(config).items():
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
        assert found == Counter(zip(*questions.read(questions.indices), strict=True))


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


def test_the_label_of_what_is_not_learnt_is_everywhere_the_same():
    assert rows_module.IGNORED == IGNORED


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
