"""What a model learns is what stands in the data: what a template drops is told, and refused where it is much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.data.text.token_caches import build, find_documents, text_config, write_jsonl
from trainer import failures
from trainer.data.text.chat import Document, encode_chats
from trainer.data.text.fidelity import ALTERED, CONTROL, CUT, EMPTY, LONG, REPLACED, Tally
from trainer.data.text.problems import text_problems
from trainer.data.text.text_source import Questions, load_questions
from trainer.data.text.tokenizer import build_byte_tokenizer
from trainer.failures import DataMissing
from trainer.prepare.before_ranks import ensure_cache
from trainer.settings.config import ConfigError

START, END = "<|im_start|>", "<|im_end|>"
TURN = f"{START}{{{{ m.role }}}}\n{{{{ %s }}}}{END}\n"
PROMPT = f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
DROPS_THOUGHTS = (
    "{% for m in messages %}" + TURN % "m.content.split('</think>')[-1]" + "{% endfor %}" + PROMPT
)
STRIPS = (
    "{% for m in messages %}" + TURN % "m.content.strip().replace('\\n\\n', '\\n')" + "{% endfor %}" + PROMPT
)
DROPS_QUESTIONS = (
    "{% for m in messages %}"
    + TURN % "m.content[:3] if m.role == 'user' else m.content"
    + "{% endfor %}"
    + PROMPT
)
REFUSES = "{% for m in messages %}{{ raise_exception('no such role') }}{% endfor %}"
THOUGHT = {"query": "2+2?", "response": "<think>two and two, a long thought</think>4"}


def tokenizer_with(template: str | None) -> Any:
    tokenizer = build_byte_tokenizer()
    if template:
        tokenizer.chat_template = template
    return tokenizer


def encode(
    pairs: list[tuple[Any, Any]], template: str | None = None, seq_len: int = 128, tokenizer: Any = None
) -> tuple[list[Document | None], Tally]:
    questions = Questions(
        lambda wanted: ([pairs[i][0] for i in wanted], [pairs[i][1] for i in wanted]), np.arange(len(pairs))
    )
    tally = Tally()
    return list(encode_chats(questions, tokenizer or tokenizer_with(template), seq_len, tally)), tally


@pytest.mark.parametrize(
    ("template", "pair", "altered"),
    [
        (DROPS_THOUGHTS, ("2+2?", THOUGHT["response"]), True),
        (DROPS_THOUGHTS, ("2+2?", "4"), False),
        (DROPS_QUESTIONS, ("2+2?", "4"), True),
        (DROPS_QUESTIONS, ("2+2", "4"), False),
        (STRIPS, ("  a\n\nb ", "\n4 "), False),
        (None, ("2+2?", THOUGHT["response"]), False),
    ],
)
def test_a_template_that_drops_text_is_noticed(template, pair, altered):
    _, tally = encode([("q", "a"), pair], template)
    assert (tally.counts[ALTERED], tally.first.get(ALTERED)) == ((1, 1) if altered else (0, None))
    assert tally.documents == 2


@pytest.mark.parametrize("bad", ["query", "response"])
@pytest.mark.parametrize("token", [START, END, "<|endoftext|>"])
def test_control_tokens_in_texts_are_text(bad, token, qwen):
    row = {"query": "q", "response": "a"} | {bad: f"x {token} y"}
    for tokenizer in (build_byte_tokenizer(), qwen):
        (plain,), _ = encode([("q", "a")], tokenizer=tokenizer)
        (document,), tally = encode([(row["query"], row["response"])], tokenizer=tokenizer)
        special = set(tokenizer.all_special_ids)
        controls = [[token for token in ids.ids if token in special] for ids in (plain, document)]
        assert controls[0] == controls[1], "those of the template alone"
        assert f"x {token} y" in tokenizer.decode(document.ids) and tally.counts[CONTROL] == 1
        again, later = encode([("q", "a")], tokenizer=tokenizer)
        assert again[0] == plain and not later.counts, "the tokenizer is left as it was"


def test_what_is_left_out_or_cut_is_counted_by_its_cause():
    pairs = [
        ("q", "a"),
        ("q", None),
        ("", "a"),
        ("q" * 300, "a"),
        ("q", "a" * 50_000),
        ("caf\ufffd", "a"),
    ]
    found, tally = encode(pairs)
    assert [document is None for document in found] == [False, True, True, True, False, False]
    assert tally.counts == {EMPTY: 2, LONG: 1, CUT: 1, REPLACED: 1} and tally.documents == 6
    assert tally.first == {EMPTY: 1, LONG: 3, CUT: 4, REPLACED: 5}
    said = [*tally.describe("train")]
    assert len(said) == 4 and "train: 2 of 6 documents" in said[0] and "row 1" in said[0]


def test_any_language_comes_back_as_it_was(qwen):
    texts = ["Привет, мир", "שלום עולם", "👩‍👩‍👧 你好", "a\u200db\u200c"]
    for tokenizer in (build_byte_tokenizer(), qwen):
        found, tally = encode([(text, text) for text in texts], tokenizer=tokenizer)
        assert not tally.counts
        for text, document in zip(texts, found, strict=True):
            assert tokenizer.decode(document.ids[document.prompt :]) == f"{text}{END}"


def test_a_template_that_refuses_a_document_says_which():
    with pytest.raises(ConfigError, match="refuses the document of row 0: no such role"):
        encode([("q", "a")], REFUSES)


def given(tmp_path: Path, thoughts: int, rows: int = 100, **settings: Any) -> Any:
    """A configuration whose data has `thoughts` documents in which the template drops something."""
    plain = [{"query": f"q{i}", "response": f"a{i}"} for i in range(rows - thoughts)]
    path = write_jsonl(
        tmp_path / "data" / "train.jsonl", [THOUGHT | {"query": f"t{i}"} for i in range(thoughts)] + plain
    )
    tokenizer_with(DROPS_THOUGHTS).save_pretrained(tmp_path / "tokenizer")
    return text_config(
        tmp_path / "results", dataset_path=str(path.parent), tokenizer=str(tmp_path / "tokenizer"), **settings
    )


def start(config: Any) -> list[str]:
    said: list[str] = []
    ensure_cache(config, said.append)
    return said


@pytest.mark.parametrize(("thoughts", "refused"), [(6, True), (5, False), (0, False)])
def test_more_than_one_in_twenty_is_refused(thoughts, refused, tmp_path):
    config = given(tmp_path, thoughts)
    told = 0
    for _ in range(2):  # it makes the cache, and it finds it
        if refused:
            with pytest.raises(DataMissing, match=f"of {thoughts} of 100 documents") as failure:
                ensure_cache(config, lambda text: None)
            assert failures.exit_code(failure.value) == 3
            with pytest.raises(DataMissing):
                text_problems(config)
        else:
            told = sum("chat template drops" in sentence for sentence in start(config))
            assert bool(told) == bool(thoughts), "at every start"
            assert text_problems(config) == []


def test_a_setting_allows_it(tmp_path):
    refused = given(tmp_path, 50)
    with pytest.raises(DataMissing, match="TRAINER_ALLOW_ALTERED_ANSWERS=true"):
        ensure_cache(refused, lambda text: None)
    allowed = refused.model_copy(update={"allow_altered_answers": True})
    assert any("chat template drops" in sentence for sentence in start(allowed))
    assert text_problems(allowed) == []


def test_a_split_without_answers_is_no_question_of_the_row_length(tmp_path):
    path = write_jsonl(
        tmp_path / "data" / "train.jsonl", [{"query": f"q{i}", "response": f"a{i}"} for i in range(40)]
    )
    write_jsonl(path.with_name("test.jsonl"), [{"query": f"q{i}", "response": " "} for i in range(9)])
    with pytest.raises(DataMissing, match="no document of the test split has a question and an answer"):
        build(text_config(tmp_path, dataset_path=str(path.parent)))


def test_columns_and_splits_that_are_not_used_are_told_at_every_start(tmp_path):
    rows = [{"query": f"q{i}", "response": "a", "system": "Be short.", "id": i} for i in range(60)]
    path = write_jsonl(tmp_path / "data" / "train.jsonl", rows)
    config = text_config(tmp_path, dataset_path=str(path))
    for _ in range(2):
        assert [each for each in start(config) if each.endswith("not used: system, id")]
    assert any("\x01user\nq" in document.text for document in find_documents(build(config).train))


def test_questions_of_a_given_split_that_are_trained_on_are_told(tmp_path):
    rows = [{"query": f"q{i}", "response": "a"} for i in range(30)]
    path = write_jsonl(tmp_path / "data" / "train.jsonl", rows)
    write_jsonl(path.with_name("test.jsonl"), [*rows[:2], {"query": "new", "response": "a"}])
    write_jsonl(path.with_name("validation.jsonl"), [{"query": "other", "response": "a"}])
    said: list[str] = []
    load_questions(text_config(tmp_path, dataset_path=str(path.parent)), tell=said.append)
    assert said == ["test: 2 of 3 questions stand in the training split too"]
