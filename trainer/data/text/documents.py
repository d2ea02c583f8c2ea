"""Turn chats and plain texts into documents: token ids, and for each whether the model learns it.

`encode_texts` tokenizes, and counts the parts of texts that the model does not learn unchanged (`Tally`).
`refuse_altered` rejects the data if the chat template alters too much of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.text_columns import TEXT
from trainer.data.text.text_form import Turns
from trainer.data.text.text_source import Texts
from trainer.data.text.tokenizer import Rendered, arrange_turns, refuse_turn, render_chat, tokenizer_source

MOST_ALTERED = 0.05
"""Share of the documents of all splits that a chat template may alter unless a setting allows more."""
EMPTY, LONG, OVER, CUT, DIVIDED = "empty", "long", "over", "cut", "divided"
MERGED, ALTERED, CONTROL, REPLACED = "merged", "altered", "control", "replaced"
LEFT_OUT = (EMPTY, LONG, OVER)
SAID = {
    EMPTY: "left out, because a text is missing or empty",
    LONG: "left out, because a row of seq_len tokens has no room for the answer",
    OVER: "left out, because they exceed a row of seq_len tokens",
    CUT: "truncated at the end of a row of seq_len tokens",
    DIVIDED: "divided among rows of seq_len tokens",
    MERGED: "with turns that were merged, renamed or dropped for the chat template",
    ALTERED: "altered: the tokenizer's chat template drops a part of the text",
    CONTROL: "with control tokens of the tokenizer in the text, encoded as text",
    REPLACED: "with U+FFFD in the text, which was decoded in the wrong encoding",
}


class Tally:
    """Counts the documents of one split by kind of problem."""

    def __init__(self) -> None:
        self.documents = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def add(self, index: int, kinds: Iterable[str]) -> None:
        """Count one document; `index` is its row in the split of the source."""
        self.documents += 1
        for kind in kinds:
            self.counts[kind] += 1
            self.first[kind] = min(index, self.first.get(kind, index))

    def describe(self, split: str) -> Iterator[str]:
        """Yield one sentence per kind that occurs."""
        for kind, said in SAID.items():
            if count := self.counts[kind]:
                yield f"{split}: {count} of {self.documents} documents: {said}; first row {self.first[kind]}"


def keeps_text(text: str, rendered: str) -> bool:
    """Return whether a rendered turn holds a text; templates may change white space."""
    return text.strip() in rendered or "".join(text.split()) in "".join(rendered.split())


def refuse_altered(config: Config, counted: Mapping[str, Any]) -> None:
    """Reject data of which the chat template alters too many documents.

    Args:
        counted: from index.json: the documents of all splits and the number that the template alters.

    Raises:
        DataMissing: more than `MOST_ALTERED` are altered and the settings do not allow it.
    """
    documents, altered = counted["documents"], counted[ALTERED]
    if config.allow_altered_answers or altered <= MOST_ALTERED * documents:
        return
    raise DataMissing(
        f"TRAINER_TOKENIZER={tokenizer_source(config)!r}: its chat template drops text (such as the reasoning before "
        f"</think>) of {altered} of {documents} documents, expected at most {MOST_ALTERED:.0%}. Choose another "
        "tokenizer, remove that text, or set TRAINER_ALLOW_ALTERED_ANSWERS=true [SL-answers-altered]"
    )


CHUNK = 1000  # documents tokenized at once, on all cores
MARK = "\ue000"  # of the private use area, so it has no meaning in templates and vocabularies
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Document:
    """Tokens that see each other."""

    index: int
    """row in the split of the source"""
    ids: list[int]
    learned: list[bool]
    """for each token whether it is learned; never the first one, which has no predecessor"""
    cut: bool = False
    """whether it exceeded a row and lost its end, so that the model does not learn to stop there"""


class _Prepared(NamedTuple):
    """One text with hidden control tokens, and the kinds to count."""

    rendered: Rendered
    kinds: tuple[str, ...] = ()


NOTHING = _Prepared(Rendered("", []), (EMPTY,))


def encode_texts(texts: Texts, tokenizer: Any, config: Config, tally: Tally) -> Iterator[list[Document]]:
    """Yield the documents of each text, in their order; an empty list if it lacks learned tokens.

    The prompt of an answer is tokenized as generation later tokenizes it: on its own. The last answer ends with the
    template's end of turn (`<|im_end|>`), else with the tokenizer's end token; white space after it is dropped. A chat
    longer than `seq_len` is truncated. Plain text continues in further documents, each of which begins with the last
    token of the one before. Control tokens within a text are encoded as text.

    Args:
        tally: counts the texts that are dropped, truncated or changed.

    Raises:
        ConfigError: the chat template rejects a chat, or does not put an answer after its own prompt.
    """
    encoder = _Encoder(tokenizer)
    for start in range(0, len(texts), CHUNK):
        indices = texts.indices[start : start + CHUNK]
        prepared = [
            _prepare(texts, encoder, config, int(index), turns)
            for index, turns in zip(indices, texts.read(indices), strict=True)
        ]
        encoded = encoder.encode([each.rendered for each in prepared], is_chat=texts.form.is_chat)
        for index, each, (ids, learned) in zip(indices, prepared, encoded, strict=True):
            documents, kinds = _fit(int(index), ids, learned, config, divides=TEXT in texts.form.columns)
            tally.add(int(index), kinds if EMPTY in kinds else [*each.kinds, *kinds])
            yield documents


SILENT = ("system", "user", "tool")
"""Roles of a chat that may lack an answer of the assistant."""


def _prepare(texts: Texts, encoder: _Encoder, config: Config, index: int, turns: Turns | None) -> _Prepared:
    if turns is None:
        return NOTHING
    given, merges = [turn.text for turn in turns], config.chat_roles == "merge"
    turns = [turn._replace(text=encoder.hide(turn.text)) for turn in turns]
    kinds = [CONTROL] if any(turn.text != text for turn, text in zip(turns, given, strict=True)) else []
    kinds += [REPLACED] if any(REPLACEMENT in text for text in given) else []
    if not texts.form.is_chat:
        text, last = "".join(turn.text for turn in turns), len(turns[-1].text)
        return _Prepared(Rendered(text, [(len(text) - last, len(text))]), tuple(kinds))
    if merges:
        turns, changed = arrange_turns(turns)
        kinds += [MERGED] if changed else []
    last = max((number for number, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
    row = f"{texts.where}: row {index}"
    if last < 0:
        for number, turn in enumerate(turns):
            if turn.role not in SILENT:
                raise refuse_turn(turns, number, row, "no turn has the role assistant or gpt")
        return NOTHING
    turns = turns[: last + 1]
    rendered = render_chat(encoder.tokenizer, encoder.controls, turns, row, merges=merges)
    answers = "".join(rendered.text[start:end] for start, end in rendered.spans)
    kept = all(
        keeps_text(turn.text, answers if turn.role == "assistant" else rendered.text) for turn in turns
    )
    return _Prepared(rendered, (*kinds, *([] if kept else [ALTERED])))


def _fit(
    index: int, ids: list[int], learned: list[bool], config: Config, *, divides: bool
) -> tuple[list[Document], list[str]]:
    """Return the documents of at most `seq_len` tokens, and the kinds to count."""
    size = config.seq_len
    if not any(learned):
        return [], [EMPTY]
    if len(ids) <= size:
        return [Document(index, ids, learned)], []
    if config.long_documents == "drop":
        return [], [OVER]
    if divides:
        starts = range(0, len(ids) - 1, size - 1)
        parts = [(ids[start : start + size], learned[start : start + size]) for start in starts]
        return [Document(index, part, [False, *marks[1:]]) for part, marks in parts], [DIVIDED]
    if not any(learned[:size]):
        return [], [LONG]
    return [Document(index, ids[:size], learned[:size], cut=True)], [CUT]


class _Encoder:
    """Encode control tokens (`<|im_end|>`) of the template as control tokens, and those in the content as text."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        facts = tokenizer.added_tokens_decoder
        self._special = {token for token, fact in facts.items() if fact.special}
        tokens = [fact.content for fact in facts.values() if fact.special and fact.content]
        tokens.sort(key=len, reverse=True)
        # one group, so that `split` returns the matches; the pattern never matches without tokens
        self.controls, self._hidden = (
            re.compile(f"({'|'.join(map(re.escape, each)) or '(?!)'})")
            for each in (tokens, [_hide(token) for token in tokens])
        )
        self._adds_blank = _adds_blank(self._backend)
        self._end = tokenizer.eos_token_id
        added = self._backend.encode("", add_special_tokens=True).ids
        self._start = [token for token in added[:1] if token == tokenizer.bos_token_id]

    def hide(self, text: str) -> str:
        """Return the text with a mark inside each control token, so that the tokenizer does not recognize it."""
        return self.controls.sub(lambda found: _hide(found[0]), text)

    def encode(
        self, rendered: Sequence[Rendered], *, is_chat: bool
    ) -> Iterator[tuple[list[int], list[bool]]]:
        """Yield (token ids, whether each is learned) of each text; no ids of an empty text.

        Outside of chats, the tokenizer's own first token and its end token are added.
        """
        pieces = [self._divide(each) for each in rendered]
        parts = iter(self._encode_all([text for each in pieces for text, _ in each]))
        for each, texts in zip(rendered, pieces, strict=True):
            encoded = [(next(parts), learns) for _, learns in texts]
            if self._adds_blank and len(texts) > 1:
                encoded = self._divide_ids(each) or encoded
            marks = [learns for part, learns in encoded for _ in part]
            found = [token for part, _ in encoded for token in part]
            if found and not is_chat:
                found, marks = self._start + found, [False] * len(self._start) + marks
            if found and marks[-1] and found[-1] not in self._special and self._end is not None:
                found, marks = [*found, self._end], [*marks, True]
            yield found, [False, *marks[1:]] if found else []

    @staticmethod
    def _divide(rendered: Rendered) -> list[tuple[str, bool]]:
        """Return the text in pieces, each with whether it is learned."""
        edges = [0, *(edge for span in rendered.spans for edge in span), len(rendered.text)]
        pieces = [
            (rendered.text[start:end], number % 2 == 1) for number, (start, end) in enumerate(pairwise(edges))
        ]
        return [(text, learns) for text, learns in pieces if text]

    def _divide_ids(self, rendered: Rendered) -> list[tuple[list[int], bool]]:
        """Return the tokens of the whole text in pieces, each of which begins where the text before it ends.

        Empty if a token reaches across an edge.
        """
        (ids,) = self._encode_all([rendered.text])
        pieces, begin, text = [], 0, ""
        for piece, learns in self._divide(rendered):
            text += piece
            (before,) = self._encode_all([text])
            if ids[: len(before)] != before:
                return []
            pieces.append((ids[begin : len(before)], learns))
            begin = len(before)
        return pieces

    def _encode_all(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts; hidden control tokens are encoded as text."""
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


def _adds_blank(backend: Any) -> bool:
    """Return whether a tokenizer puts a blank in front of a text, like Llama-2's and Mistral's."""
    text = backend.normalizer.normalize_str("a") if backend.normalizer else "a"
    pieces = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer else [(text, None)]
    return bool(pieces[0][0] != "a")
