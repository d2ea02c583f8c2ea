"""From a question and its answer to token ids: the chat form that the tokenizer's template gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.text.text_source import Questions
from trainer.settings.config import ConfigError

CHUNK = 1000  # documents tokenised at once, by all cores


@dataclass(frozen=True)
class Document:
    """One chat. Tokens before `prompt` are given, those from it on are learnt."""

    index: int
    """in the split of the source"""
    ids: list[int]
    prompt: int
    cut: bool
    """longer than a row: its end was cut off, so that it does not teach to stop"""


def encode_chats(questions: Questions, tokenizer: Any, seq_len: int) -> Iterator[Document | None]:
    """A document per question, in their order; None where nothing could be learnt from it.

    Prompt and answer are tokenised apart, as the prompt is when the model is asked later. The answer ends with the
    template's end of turn (`<|im_end|>`); white space behind that is left out, because no one predicts from it.
    A document longer than `seq_len` is cut; one whose prompt alone fills the row, or without text, is None.

    Raises:
        ConfigError: the chat template does not put an answer behind its own prompt.
    """
    special = {token for token, facts in tokenizer.added_tokens_decoder.items() if facts.special}
    for start in range(0, len(questions), CHUNK):
        indices = questions.indices[start : start + CHUNK]
        prompts, answers = _render(tokenizer, *questions.read(indices))
        prompt_ids, answer_ids = _encode(tokenizer, prompts), _encode(tokenizer, answers)
        for index, prompt, answer in zip(indices, prompt_ids, answer_ids, strict=True):
            if answer and answer[-1] not in special and tokenizer.eos_token_id is not None:
                answer = [*answer, tokenizer.eos_token_id]
            if not answer or not prompt or len(prompt) >= seq_len:
                yield None
                continue
            ids = prompt + answer
            yield Document(int(index), ids[:seq_len], len(prompt), len(ids) > seq_len)


def _render(tokenizer: Any, queries: list[Any], responses: list[Any]) -> tuple[list[str], list[str]]:
    prompts, answers = [], []
    for query, response in zip(queries, responses, strict=True):
        if not query or not response or not query.strip() or not response.strip():
            prompts.append("")
            answers.append("")
            continue
        asked = [{"role": "user", "content": query}]
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(
            [*asked, {"role": "assistant", "content": response}], tokenize=False
        )
        if not whole.startswith(prompt):
            raise ConfigError(
                [
                    "TRAINER_TOKENIZER: its chat template does not put the answer behind its generation prompt, so "
                    f"that they cannot be told apart: {prompt!r} is no beginning of {whole!r}"
                ]
            )
        prompts.append(prompt)
        answers.append(whole[len(prompt) :].rstrip())
    return prompts, answers


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def as_array(documents: list[Document], dtype: Any) -> NDArray[Any]:
    """All their ids, one after the other."""
    return np.concatenate([np.asarray(document.ids, dtype) for document in documents])
