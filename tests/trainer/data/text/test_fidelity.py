"""What a model learns is what stands in the data: what a template drops is told, and refused where it is much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.exit_codes import DATA_MISSING, DataMissing, exit_code
from tests.codes import find_codes
from tests.trainer.data.text.token_caches import (
    build,
    encode,
    find_documents,
    text_config,
    write_jsonl,
)
from trainer.data.text.text_source import load_questions
from trainer.data.text.token_rows import text_problems
from trainer.data.text.tokenizer import ALTERED, CONTROL, CUT, EMPTY, LONG, REPLACED, build_byte_tokenizer
from trainer.prepare.preparation import ensure_cache

START, END = "<|im_start|>", "<|im_end|>"
PROMPT = f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"


def template_of(content: str) -> str:
    turn = f"{START}{{{{ m.role }}}}\n{{{{ {content} }}}}{END}\n"
    return f"{{% for m in messages %}}{turn}{{% endfor %}}{PROMPT}"


DROPS_THOUGHTS = template_of("m.content.split('</think>')[-1]")
STRIPS = template_of("m.content.strip().replace('\\n\\n', '\\n')")
DROPS_QUESTIONS = template_of("m.content[:3] if m.role == 'user' else m.content")
THOUGHT = "<think>two and two, a long thought</think>4"


def tokenizer_with(template: str | None) -> Any:
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "pair", "altered"),
    [
        (DROPS_THOUGHTS, ("2+2?", THOUGHT), True),
        (DROPS_THOUGHTS, ("2+2?", "4"), False),
        (DROPS_QUESTIONS, ("2+2?", "4"), True),
        (STRIPS, ("  a\n\nb ", "\n4 "), False),
        (None, ("2+2?", THOUGHT), False),
    ],
)
def test_a_template_that_drops_text_is_noticed(template, pair, altered):
    _, tally = encode([("q", "a"), pair], tokenizer_with(template))
    assert (tally.counts[ALTERED], tally.first.get(ALTERED)) == ((1, 1) if altered else (0, None))
    assert tally.documents == 2


@pytest.mark.parametrize("pair", [(f"x {START} y", "a"), ("q", f"x {END} y")])
def test_control_tokens_in_texts_are_text(pair):
    tokenizer = build_byte_tokenizer()
    (plain,), _ = encode([("q", "a")], tokenizer)
    (document,), tally = encode([pair], tokenizer)
    controls = [[each for each in one.ids if each > 255] for one in (plain, document)]
    assert controls[0] == controls[1], "those of the template alone"
    assert pair[pair[0] == "q"] in tokenizer.decode(document.ids) and tally.counts[CONTROL] == 1
    again, later = encode([("q", "a")], tokenizer)
    assert again[0] == plain and not later.counts, "the tokenizer is left as it was"


def test_what_is_left_out_or_cut_is_counted_by_its_cause():
    pairs = [("q", "a"), ("q", None), ("", "a"), ("q" * 300, "a"), ("q", "a" * 50_000), ("caf\ufffd", "a")]
    found, tally = encode(pairs, build_byte_tokenizer())
    assert [document is None for document in found] == [False, True, True, True, False, False]
    assert tally.counts == {EMPTY: 2, LONG: 1, CUT: 1, REPLACED: 1} and tally.documents == 6
    assert tally.first == {EMPTY: 1, LONG: 3, CUT: 4, REPLACED: 5}
    said = [*tally.describe("train")]
    assert len(said) == 4 and said[0].startswith("train: 2 of 6 ") and said[0].endswith(" 1")


def given(tmp_path: Path, thoughts: int) -> Any:
    """A configuration whose data has `thoughts` of 100 documents in which the template drops something."""
    rows = [{"query": f"q{i}", "response": THOUGHT if i < thoughts else f"a{i}"} for i in range(100)]
    path = write_jsonl(tmp_path / "data" / "train.jsonl", rows)
    tokenizer_with(DROPS_THOUGHTS).save_pretrained(tmp_path / "tokenizer")
    return text_config(
        tmp_path / "results", dataset_path=str(path.parent), tokenizer=str(tmp_path / "tokenizer")
    )


def start(config: Any) -> list[str]:
    said: list[str] = []
    ensure_cache(config, said.append)
    return said


def test_more_than_one_in_twenty_is_refused(tmp_path):
    refused = given(tmp_path / "6", 6)
    for look in (start, start, text_problems):  # it makes the cache, and it finds it
        with pytest.raises(DataMissing) as failure:
            look(refused)
        assert find_codes(failure.value) == ["SL-answers-altered"] and " 6 of 100 " in str(failure.value)
        assert exit_code(failure.value) == DATA_MISSING
    allowed = refused.model_copy(update={"allow_altered_answers": True})
    for config in (allowed, given(tmp_path / "5", 5)):
        for _ in range(2):
            assert any("template" in sentence for sentence in start(config)), "at every start"
        assert text_problems(config) == []


def test_columns_that_are_not_used_are_told_at_every_start(tmp_path):
    rows = [{"query": f"q{i}", "response": "a", "system": "Be short.", "id": i} for i in range(60)]
    config = text_config(tmp_path, dataset_path=str(write_jsonl(tmp_path / "data" / "train.jsonl", rows)))
    for _ in range(2):
        assert [each for each in start(config) if each.endswith(": system, id")]
    assert any("\x01user\nq" in document.text for document in find_documents(build(config).train))


def test_questions_of_a_given_split_that_are_trained_on_are_told(tmp_path):
    rows = [{"query": f"q{i}", "response": "a"} for i in range(30)]
    path = write_jsonl(tmp_path / "data" / "train.jsonl", rows)
    write_jsonl(path.with_name("test.jsonl"), [*rows[:2], {"query": "new", "response": "a"}])
    write_jsonl(path.with_name("validation.jsonl"), [{"query": "other", "response": "a"}])
    said: list[str] = []
    load_questions(text_config(tmp_path, dataset_path=str(path.parent)), tell=said.append)
    assert len(said) == 1 and said[0].startswith("test: 2 of 3 ")
