from __future__ import annotations

import pytest

from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from tests.trainer.data.text.token_caches import encode
from trainer.data.text.tokenizer import build_byte_tokenizer


def ask(pairs, tokenizer=None, seq_len=64):
    return encode(pairs, tokenizer or build_byte_tokenizer(), seq_len)[0]


def with_template(template):
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_document_is_the_chat_up_to_the_end_of_its_answer():
    (document,) = ask([("1+1?", "2")])
    prompt = [257, *b"user\n1+1?", 258, *b"\n", 257, *b"assistant\n"]
    assert document.ids == [*prompt, *b"2", 258] and document.prompt == len(prompt) and not document.cut
    assert ask([("", "a"), (None, "a"), ("q", None), (" ", "a"), ("q", "\n")]) == [None] * 5


def test_long_documents_are_cut_and_those_without_a_label_left_out():
    around = len(ask([("q", "a")])[0].ids) - 3  # of the chat form before the answer
    whole, cut, brink, none = ask(
        [("q" * 4, "a" * 20), ("q" * 4, "a" * 60), ("q" * (63 - around), "abc"), ("q" * (64 - around), "a")]
    )
    assert len(whole.ids) == around + 4 + 21 and whole.ids[-1] == 258 and not whole.cut
    assert len(cut.ids) == 64 and cut.cut and cut.ids[-1] == ord("a"), "it must not teach to stop there"
    assert brink.prompt == 63 and brink.ids[63:] == [ord("a")] and brink.cut
    assert none is None


def test_an_answer_without_an_end_gets_one():
    tokenizer = with_template("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    (document,) = ask([("q", "a")], tokenizer)
    ids, prompt = document.ids, document.prompt
    assert tokenizer.decode(ids) == "[q][a]<|im_end|>" and tokenizer.decode(ids[:prompt]) == "[q]"


def test_the_template_s_end_is_the_end_whatever_the_tokenizer_calls_its_own():
    tokenizer = build_byte_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"  # as in the tokenizers of models that are no instruction models
    (document,) = ask([("1+1?", "2")], tokenizer)
    assert document.ids[-2:] == [ord("2"), 258]


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{% for m in messages | reverse %}[{{ m.content }}]{% endfor %}", "SL-chat-template-order"),
        ("{% for m in messages %}{{ raise_exception('no') }}{% endfor %}", "SL-chat-template-refuses"),
    ],
)
def test_a_template_that_does_not_work_is_refused(template, code):
    with pytest.raises(ConfigError) as failure:
        ask([("q", "a")], with_template(template))
    assert find_codes(failure.value) == [code] and "TRAINER_TOKENIZER" in str(failure.value)
