"""From a question and its answer to token ids: the chat form that the tokenizer's template gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.text.fidelity import ALTERED, CONTROL, CUT, EMPTY, LONG, REPLACED, Tally, keeps_text
from trainer.data.text.text_source import Questions
from trainer.settings.config import ConfigError

CHUNK = 1000  # documents tokenised at once, by all cores
MARK = "\ue000"  # of the private use area: no template and no vocabulary gives it a meaning
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Document:
    """One chat. Tokens before `prompt` are given, those from it on are learnt."""

    index: int
    """in the split of the source"""
    ids: list[int]
    prompt: int
    cut: bool
    """longer than a row: its end was cut off, so that it does not teach to stop"""


class _Chat(NamedTuple):
    """One chat as text, its control tokens in content hidden, and what is counted of it."""

    prompt: str
    answer: str
    kinds: tuple[str, ...]


def encode_chats(
    questions: Questions, tokenizer: Any, seq_len: int, tally: Tally
) -> Iterator[Document | None]:
    """A document per question, in their order; None where nothing could be learnt from it.

    Prompt and answer are tokenised apart, as the prompt is when the model is asked later. The answer ends with the
    template's end of turn (`<|im_end|>`); white space behind that is left out, because no one predicts from it.
    A document longer than `seq_len` is cut; one whose prompt alone fills the row, or without text, is None. A control
    token that stands in a question or an answer is encoded as text.

    Args:
        tally: counts what is left out, cut or not learnt as it stands.

    Raises:
        ConfigError: the chat template refuses a document, or does not put an answer behind its own prompt.
    """
    special = {token for token, facts in tokenizer.added_tokens_decoder.items() if facts.special}
    controls = _Controls(tokenizer)
    for start in range(0, len(questions), CHUNK):
        indices = questions.indices[start : start + CHUNK]
        texts = zip(indices, *questions.read(indices), strict=True)
        chats = [_render(tokenizer, controls, int(i), query, response) for i, query, response in texts]
        prompt_ids = controls.encode([chat.prompt for chat in chats])
        answer_ids = controls.encode([chat.answer for chat in chats])
        for index, chat, prompt, answer in zip(indices, chats, prompt_ids, answer_ids, strict=True):
            if answer and answer[-1] not in special and tokenizer.eos_token_id is not None:
                answer = [*answer, tokenizer.eos_token_id]
            if not answer or not prompt:
                tally.add(int(index), [EMPTY])
                yield None
            elif len(prompt) >= seq_len:
                tally.add(int(index), [*chat.kinds, LONG])
                yield None
            else:
                ids = prompt + answer
                cut = len(ids) > seq_len
                tally.add(int(index), [*chat.kinds, *([CUT] if cut else [])])
                yield Document(int(index), ids[:seq_len], len(prompt), cut)


def _render(tokenizer: Any, controls: _Controls, index: int, query: Any, response: Any) -> _Chat:
    if not query or not response or not query.strip() or not response.strip():
        return _Chat("", "", ())
    texts = controls.hide(query), controls.hide(response)
    asked = [{"role": "user", "content": texts[0]}]
    answered = [*asked, {"role": "assistant", "content": texts[1]}]
    try:
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(answered, tokenize=False)
    except Exception as failure:  # jinja's own, and whatever a template raises
        raise ConfigError(
            [
                f"TRAINER_TOKENIZER: its chat template refuses the document of row {index}: {failure} "
                "[SL-chat-template-refuses]"
            ]
        ) from failure
    if not whole.startswith(prompt):
        raise ConfigError(
            [
                "TRAINER_TOKENIZER: its chat template does not put the answer behind its generation prompt, so "
                f"that they cannot be told apart: {prompt!r} is no beginning of {whole!r} [SL-chat-template-order]"
            ]
        )
    answer = whole[len(prompt) :].rstrip()
    found = {
        ALTERED: not (keeps_text(texts[0], prompt) and keeps_text(texts[1], answer)),
        CONTROL: texts != (query, response),
        REPLACED: REPLACEMENT in query or REPLACEMENT in response,
    }
    return _Chat(prompt, answer, tuple(kind for kind, holds in found.items() if holds))


class _Controls:
    """Control tokens of a tokenizer (`<|im_end|>`): those of a template count, those that stand in content are text."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        facts = tokenizer.added_tokens_decoder.values()
        tokens = sorted((f.content for f in facts if f.special and f.content), key=len, reverse=True)
        self._tokens = _build_pattern(tokens)
        self._hidden = _build_pattern([_hide(token) for token in tokens])

    def hide(self, text: str) -> str:
        """The text with a mark inside each control token, so that it is none."""
        return self._tokens.sub(lambda found: _hide(found[0]), text)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of rendered texts; what is hidden is encoded as the text that it was."""
        found = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [
            self._encode_parts(text) if MARK in text else encoding.ids
            for text, encoding in zip(texts, found, strict=True)
        ]

    def _encode_parts(self, text: str) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(self._hidden.split(text)):
            hidden = number % 2 == 1
            self._backend.encode_special_tokens = hidden
            part = part[0] + part[2:] if hidden else part
            ids += self._backend.encode(part, add_special_tokens=False).ids
        self._backend.encode_special_tokens = False
        return ids


def _hide(token: str) -> str:
    return token[0] + MARK + token[1:]


def _build_pattern(tokens: list[str]) -> re.Pattern[str]:
    """One group, so that `split` keeps what it finds; never matches without tokens."""
    return re.compile(f"({'|'.join(map(re.escape, tokens)) or '(?!)'})")


def as_array(documents: list[Document], dtype: Any) -> NDArray[Any]:
    """All their ids, one after the other."""
    return np.concatenate([np.asarray(document.ids, dtype) for document in documents])
