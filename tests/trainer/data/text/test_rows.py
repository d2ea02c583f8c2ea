from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.codes import find_codes
from tests.trainer.data.text.token_caches import (
    CHAT,
    END,
    PAD,
    build,
    documents_of,
    find_documents,
    text_config,
    write_jsonl,
)
from trainer.data.batches import IGNORED
from trainer.data.text import rows as rows_module
from trainer.data.text.cache import cache_folder
from trainer.data.text.rows import open_text
from trainer.data.text.text_source import SPLITS, load_questions
from trainer.failures import DataMissing


@pytest.fixture(scope="module", params=[True, False], ids=["packed", "padded"])
def cache(request, tmp_path_factory):
    """(config, data) of arithmetic in rows of 256 bytes, where no document is cut."""
    results, some = tmp_path_factory.mktemp("results"), {"seq_len": 256, "train_samples": 600}
    config = text_config(results, packing=request.param, **some)
    return config, build(config)


packed = pytest.mark.parametrize("cache", [True], ids=["packed"], indirect=True)


def test_every_document_stands_in_exactly_one_row(cache):
    config, data = cache
    for name, questions in load_questions(config).items():
        wanted = Counter(zip(*questions.read(questions.indices), strict=True))
        found = [
            CHAT.fullmatch(d.text.rstrip("\x00"))
            for d in find_documents(getattr(data, name))
            if d.ids[0] != PAD
        ]
        assert None not in found, "a document that is no whole chat"
        assert Counter((match[1], match[2]) for match in found) == wanted


def test_only_answers_are_learnt_and_each_label_is_the_next_token(cache):
    _, data = cache
    for document in find_documents(data.train):
        text = document.text.rstrip("\x00")
        if not text:
            assert set(document.labels) == {IGNORED}
            continue
        answer = CHAT.fullmatch(text)[2].encode()
        wanted = [IGNORED] * len(document.ids)
        end = len(text.encode())  # the place of <|im_end|> is the last one, and nothing is learnt there
        for i, token in enumerate([*answer, END]):
            wanted[end - 2 - len(answer) + i] = token
        assert document.labels == wanted


def test_positions_say_what_attention_may_see(cache):
    """Packed: every document and the padding apart. Padded: one document, and positions go on behind it."""
    config, data = cache
    inputs, _ = data.train.rows(np.arange(len(data.train)))
    documents = documents_of(inputs)
    if not config.packing:
        assert (documents == 0).all()
        return
    starts = (inputs[:, 0] == 257) & (np.roll(inputs[:, 0], 1, axis=1) == END)  # <|im_start|> behind an end
    starts[:, 0] = True
    is_pad = inputs[:, 0] == PAD
    starts |= is_pad & ~np.roll(is_pad, 1, axis=1)
    truth = np.maximum.accumulate(np.where(starts, np.arange(config.seq_len), 0), axis=1)
    assert (documents == truth).all()
    assert starts.sum(axis=1).max() >= 4


@packed
def test_bounds_are_those_of_the_fullest_row_and_the_longest_document(cache):
    """Of what the rows hold, padding included: no micro-batch has more, and one has as many."""
    _, data = cache
    for rows in (data.train, data.validation, data.test):
        inputs, _ = rows.rows(np.arange(len(rows)))
        starts = inputs[:, 1] == 0
        assert rows.most_documents() == starts.sum(axis=1).max()
        assert rows.longest_document() == 1 + inputs[:, 1].max()


def test_counts_are_those_of_the_rows(cache):
    _, data = cache
    for name in SPLITS:
        rows, facts = getattr(data, name), data.facts[name]
        inputs, labels = rows.rows(np.arange(len(rows)))
        useful = inputs[:, 0] != PAD
        some = np.array([3, 0, len(rows) - 1, 3])
        assert rows.label_counts(some) == (labels[some] != IGNORED).sum()
        assert rows.token_counts(some) == useful[some].sum()
        assert facts["labels"] == (labels != IGNORED).sum() and facts["tokens"] == useful.sum()
        assert (labels != IGNORED).sum(axis=1).min() > 0
        assert facts["useful_pct"] == pytest.approx(100 * useful.mean())
        assert facts["documents_cut"] == facts["documents_left_out"] == 0
        for place, row in enumerate(some):  # the same wherever it is asked for
            alone = rows.rows(np.array([row]))
            assert all(
                (one[0] == whole[some][place]).all()
                for one, whole in zip(alone, (inputs, labels), strict=True)
            )


def test_cut_documents_fill_their_row_and_are_counted(tmp_path):
    rows = [{"query": f"{i}?", "response": "a" * (1, 21, 61)[i % 3]} for i in range(300)]
    rows += [{"query": f"{i}" + "q" * 100, "response": "a"} for i in range(100)]
    path = write_jsonl(tmp_path / "math" / "train.jsonl", rows)
    data = build(text_config(tmp_path, dataset_path=str(path), seq_len=64))
    facts = {
        key: sum(split[key] for split in data.facts.values())
        for key in data.facts["train"]
        if key != "sha256"
    }
    assert facts["documents_left_out"] == 100 and facts["documents"] == 300
    assert facts["documents_cut"] == 100, "61 characters do not fit behind a prompt of 21 tokens or more"
    lengths = [len(d.ids) for d in find_documents(data.train) if d.ids[0] != PAD and d.ids[-1] != END]
    assert set(lengths) == {64}


def test_ids_above_16_bits_survive(tmp_path, qwen_folder):
    config = text_config(
        tmp_path, tokenizer=str(qwen_folder), model="qwen2.5-0.5b", seq_len=512, train_samples=40
    )
    data = build(config)
    inputs, labels = data.train.rows(np.arange(len(data.train)))
    assert inputs[:, 0].max() == 151645 and labels.max() == 151645 and data.vocab == 151646
    text = data.tokenizer.decode(inputs[0, 0])
    assert text.startswith("<|im_start|>system\nYou are Qwen") and "The answer is: " in text
    learnt = data.tokenizer.decode(labels[labels != IGNORED])
    assert learnt.count("<|im_end|>") == 40 == learnt.count("The answer is: ") and "assistant" not in learnt


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
