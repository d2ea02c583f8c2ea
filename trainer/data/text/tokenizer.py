"""Turn questions and answers into token ids, in the chat form of the tokenizer's template, without torch.

`load_tokenizer` loads the setting `tokenizer`, else the model's own tokenizer, else bytes for the tiny presets.
`encode_chats` tokenizes and counts the parts of texts that the model does not learn unchanged (`Tally`).
`refuse_altered` rejects the data if the template alters too much of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import TEXT_MODELS
from trainer.data.text.text_source import Questions

if TYPE_CHECKING:
    from stratlab_spec.settings.config import Config


BYTES = "bytes"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json"),
)

_TURNS = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML = (
    "{% if messages[0].role != 'system' %}"
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "{% endif %}" + _TURNS
)
"""For tokenizers without a chat template: the template of Qwen2.5-Instruct for a chat without tools."""


def tokenizer_source(config: Config) -> str:
    """Return `bytes` (also as `tokenizer`), a folder, or an id on the hub."""
    if config.tokenizer:
        return config.tokenizer
    if config.model_path:
        return config.model_path
    if config.model in TEXT_MODELS:
        from stratlab_spec.models.decoder_presets import TEXT_HUB_IDS

        return TEXT_HUB_IDS.get(
            config.model, BYTES
        )  # a preset without published weights has no own tokenizer
    return config.model


def identify_tokenizer(config: Config) -> dict[str, str]:
    """Return the tokenizer's part of a cache name: the hash of a folder's files; for the hub only the id.

    Raises:
        DataMissing: the folder has no tokenizer.json.
    """
    source = tokenizer_source(config)
    if not is_folder(source):
        return {"name": source}
    digest = hashlib.sha256()
    for name in FILES:
        path = Path(source, name)
        if path.is_file():
            with open(path, "rb") as file:
                digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        elif name == "tokenizer.json":
            raise _absent(config, source)
    return {"name": os.path.basename(os.path.normpath(source)), "sha256": digest.hexdigest()}


def is_folder(source: str) -> bool:
    """Return whether `source` is a path rather than an id on the hub."""
    return source != BYTES and (source.startswith((".", "/")) or Path(source).is_dir())


def load_tokenizer(config: Config) -> Any:
    """Return a PreTrainedTokenizerFast with a chat template, without truncation and padding.

    AutoTokenizer is not used, because it imports torch (transformers 5.23); tokenizer.json suffices.

    Raises:
        DataMissing: tokenizer.json is absent or cannot be read.
    """
    source = tokenizer_source(config)
    if source == BYTES:
        return build_byte_tokenizer()
    if is_folder(source) and not Path(source, "tokenizer.json").is_file():
        raise _absent(config, source)
    try:
        return read_tokenizer(source)
    except Exception as failure:  # errors of the hub's client and of two parsers: unavailable
        raise DataMissing(
            f"{_named(config)}: no tokenizer can be loaded from {source!r}: {failure}; "
            "name another id on the hub or a local folder in TRAINER_TOKENIZER [SL-tokenizer-unloadable]"
        ) from failure


def read_tokenizer(source: str) -> Any:
    """Return the tokenizer of a folder or of an id on the hub."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    if not tokenizer.chat_template:
        tokenizer.chat_template = CHATML
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def build_byte_tokenizer() -> Any:
    """Return a tokenizer of 256 bytes and three special tokens, ids 0 to 258; its chat form has no system prompt.

    Byte b has the id b.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import ByteLevel
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0], chat_template=_TURNS
    )


def count_vocabulary(tokenizer: Any) -> int:
    """Return the rows that an embedding needs: the highest id + 1."""
    return max(tokenizer.get_vocab().values()) + 1


def hash_tokenizer(tokenizer: Any) -> str:
    """Return the sha256 of everything that decides the ids of a chat."""
    parts = (tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.eos_token)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _named(config: Config) -> str:
    own = f"{config.model_setting}, TRAINER_TOKENIZER=''"
    return f"TRAINER_TOKENIZER={config.tokenizer!r}" if config.tokenizer else own


def _absent(config: Config, source: str) -> DataMissing:
    lacks = "no such folder [SL-tokenizer-folder-absent]"
    if Path(source).is_dir():
        lacks = (
            "holds no tokenizer.json; name a tokenizer on the hub or a folder in TRAINER_TOKENIZER "
            "[SL-tokenizer-file-absent]"
        )
    return DataMissing(f"{_named(config)}: {lacks}")


MOST_ALTERED = 0.05
"""Share of the documents of all splits that a chat template may alter unless a setting allows more."""
EMPTY, LONG, CUT, ALTERED, CONTROL, REPLACED = "empty", "long", "cut", "altered", "control", "replaced"
SAID = {
    EMPTY: "left out, because the question or the answer is empty",
    LONG: "left out, because a row of seq_len tokens has no room for the answer",
    CUT: "truncated at the end of a row of seq_len tokens",
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
    """One chat; the tokens before `prompt` are input only, the others are learned."""

    index: int
    """row in the split of the source"""
    ids: list[int]
    prompt: int
    cut: bool
    """whether it was longer than a row and lost its end, so that it does not teach the model to stop"""


class _Chat(NamedTuple):
    """One chat as text, with the control tokens in its content hidden, and the kinds to count."""

    prompt: str
    answer: str
    kinds: tuple[str, ...]


def encode_chats(
    questions: Questions, tokenizer: Any, seq_len: int, tally: Tally
) -> Iterator[Document | None]:
    """Yield a document per question, in their order; None if the model can learn nothing from it.

    Prompt and answer are tokenized separately, because generation later tokenizes the prompt on its own. The answer
    ends with the template's end of turn (`<|im_end|>`); white space after it is dropped, because no generation needs
    it. A document longer than `seq_len` is truncated. A document without text, or with a prompt that fills the row,
    gives None. Control tokens within a question or an answer are encoded as text.

    Args:
        tally: counts the documents that are dropped, truncated or changed.

    Raises:
        ConfigError: the chat template rejects a document, or does not put the answer after its own prompt.
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
            document, kinds = None, [*chat.kinds]
            if not answer or not prompt:
                kinds = [EMPTY]
            elif len(prompt) >= seq_len:
                kinds.append(LONG)
            else:
                ids = prompt + answer
                document = Document(int(index), ids[:seq_len], len(prompt), cut=len(ids) > seq_len)
                kinds += [CUT] if document.cut else []
            tally.add(int(index), kinds)
            yield document


def _render(tokenizer: Any, controls: _Controls, index: int, query: Any, response: Any) -> _Chat:
    if not query or not response or not query.strip() or not response.strip():
        return _Chat("", "", ())
    texts = controls.hide(query), controls.hide(response)
    asked = [{"role": "user", "content": texts[0]}]
    answered = [*asked, {"role": "assistant", "content": texts[1]}]
    try:
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(answered, tokenize=False)
    except Exception as failure:  # errors of jinja or of the template itself
        raise ConfigError(
            f"TRAINER_TOKENIZER: its chat template rejects the document of row {index}: {failure} "
            "[SL-chat-template-refuses]"
        ) from failure
    if not whole.startswith(prompt):
        raise ConfigError(
            "TRAINER_TOKENIZER: its chat template does not put the answer after its generation prompt, so they "
            f"cannot be separated: {prompt!r} is not the start of {whole!r} [SL-chat-template-order]"
        )
    answer = whole[len(prompt) :].rstrip()
    found = {
        ALTERED: not (keeps_text(texts[0], prompt) and keeps_text(texts[1], answer)),
        CONTROL: texts != (query, response),
        REPLACED: REPLACEMENT in query or REPLACEMENT in response,
    }
    return _Chat(prompt, answer, tuple(kind for kind, holds in found.items() if holds))


class _Controls:
    """Encodes control tokens (`<|im_end|>`) of the template as such, and control tokens in the content as text."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        facts = tokenizer.added_tokens_decoder.values()
        tokens = sorted((f.content for f in facts if f.special and f.content), key=len, reverse=True)
        # one group, so that `split` returns the matches; the pattern never matches without tokens
        self._tokens, self._hidden = (
            re.compile(f"({'|'.join(map(re.escape, each)) or '(?!)'})")
            for each in (tokens, [_hide(token) for token in tokens])
        )

    def hide(self, text: str) -> str:
        """Return the text with a mark inside each control token, so that the tokenizer does not recognize it."""
        return self._tokens.sub(lambda found: _hide(found[0]), text)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of rendered texts; hidden control tokens are encoded as text."""
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
