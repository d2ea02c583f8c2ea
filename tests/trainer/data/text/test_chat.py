from __future__ import annotations

import numpy as np
import pytest

from trainer.data.text.chat import encode_chats
from trainer.data.text.fidelity import Tally
from trainer.data.text.text_source import Questions
from trainer.data.text.tokenizer import build_byte_tokenizer
from trainer.settings.config import ConfigError


def ask(tokenizer, pairs, seq_len=64):
    questions = Questions(
        lambda wanted: ([pairs[i][0] for i in wanted], [pairs[i][1] for i in wanted]), np.arange(len(pairs))
    )
    return list(encode_chats(questions, tokenizer, seq_len, Tally()))


def test_a_document_is_the_chat_up_to_the_end_of_its_answer():
    (document,) = ask(build_byte_tokenizer(), [("1+1?", "2")])
    prompt = [257, *b"user\n1+1?", 258, *b"\n", 257, *b"assistant\n"]
    assert document.ids == [*prompt, *b"2", 258] and document.prompt == len(prompt) and not document.cut


def test_with_the_real_vocabulary(qwen):
    (document,) = ask(qwen, [("What is 12+5?", "\n\nThe answer is: 17 ")], 512)
    chat = [{"role": "user", "content": "What is 12+5?"}]
    prompt = qwen.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert document.ids[: document.prompt] == prompt, "the ids that the model is asked with later"
    assert qwen.decode(document.ids[document.prompt :]) == "\n\nThe answer is: 17 <|im_end|>"
    assert document.ids[-1] == 151645 and document.ids[:2] == [151644, 8948]


def test_long_documents_are_cut_and_those_without_a_label_left_out():
    around = len(ask(build_byte_tokenizer(), [("q", "a")])[0].ids) - 3  # of the chat form before the answer
    whole, cut, brink, none = ask(
        build_byte_tokenizer(),
        [
            ("q" * 4, "a" * 20),
            ("q" * 4, "a" * 60),
            ("q" * (63 - around), "abc"),
            ("q" * (64 - around), "a"),
        ],
    )
    assert len(whole.ids) == around + 4 + 21 and whole.ids[-1] == 258 and not whole.cut
    assert len(cut.ids) == 64 and cut.cut and cut.ids[-1] == ord("a"), "it must not teach to stop there"
    assert brink.prompt == 63 and brink.ids[63:] == [ord("a")] and brink.cut
    assert none is None


def test_nothing_is_learnt_from_missing_text():
    found = ask(
        build_byte_tokenizer(), [("", "a"), ("q", ""), (None, "a"), ("q", None), (" ", "a"), ("q", "\n")]
    )
    assert found == [None] * 6


def test_an_answer_without_an_end_gets_one():
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    (document,) = ask(tokenizer, [("q", "a")])
    ids, prompt = document.ids, document.prompt
    assert tokenizer.decode(ids) == "[q][a]<|im_end|>" and tokenizer.decode(ids[:prompt]) == "[q]"


def test_the_template_s_end_is_the_end_whatever_the_tokenizer_calls_its_own():
    tokenizer = build_byte_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"  # as in the tokenizers of models that are no instruction models
    (document,) = ask(tokenizer, [("1+1?", "2")])
    assert document.ids[-2:] == [ord("2"), 258]


def test_a_template_that_hides_where_the_answer_starts_is_refused():
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages | reverse %}[{{ m.content }}]{% endfor %}"
    with pytest.raises(ConfigError, match="TRAINER_TOKENIZER: its chat template"):
        ask(tokenizer, [("q", "a")])
