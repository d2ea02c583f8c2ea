"""From a question and its answer to token ids, in the chat form that the tokenizer's template gives them.

The tokenizer is the setting `tokenizer`, else the model's own, else bytes for the tiny presets; without torch. What of
the texts is not learnt as it stands in the data is counted while they are tokenised, told, and refused if it is much.
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
"""For tokenizers without a chat template: what that of Qwen2.5-Instruct makes of a chat without tools."""


def tokenizer_source(config: Config) -> str:
    """`bytes` (also as `tokenizer`), a folder, or an id on the hub."""
    if config.tokenizer:
        return config.tokenizer
    if config.model_path:
        return config.model_path
    if config.model in TEXT_MODELS:
        from stratlab_spec.models.decoder import TEXT_HUB_IDS

        return TEXT_HUB_IDS.get(config.model, BYTES)  # a preset of nobody's weights has nobody's words
    return config.model


def identify_tokenizer(config: Config) -> dict[str, str]:
    """What the name of a cache depends on: the hash of a folder's files; of an id on the hub only the id.

    Raises:
        DataMissing: a folder without tokenizer.json.
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
    """Whether it is a path rather than an id on the hub."""
    return source != BYTES and (source.startswith((".", "/")) or Path(source).is_dir())


def load_tokenizer(config: Config) -> Any:
    """transformers' PreTrainedTokenizerFast, always with a chat template and never with truncation or padding.

    Not AutoTokenizer: that imports torch (transformers 5.23), and tokenizer.json says everything.

    Raises:
        DataMissing: no tokenizer.json there, or one that cannot be read.
    """
    source = tokenizer_source(config)
    if source == BYTES:
        return build_byte_tokenizer()
    if is_folder(source) and not Path(source, "tokenizer.json").is_file():
        raise _absent(config, source)
    try:
        return read_tokenizer(source)
    except Exception as failure:  # of the hub's client, of two parsers: all mean "not to be had"
        raise DataMissing(
            f"{_named(config)}: no tokenizer can be loaded from {source!r}: {failure}; "
            "name another id on the hub or a local folder in TRAINER_TOKENIZER [SL-tokenizer-unloadable]"
        ) from failure


def read_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or an id on the hub."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    if not tokenizer.chat_template:
        tokenizer.chat_template = CHATML
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def build_byte_tokenizer() -> Any:
    """256 bytes and three special tokens, ids 0 to 258: byte b has the id b. Its chat form has no system prompt."""
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
    """Rows that an embedding needs: the highest id + 1."""
    return max(tokenizer.get_vocab().values()) + 1


def hash_tokenizer(tokenizer: Any) -> str:
    """sha256 over all that decides which ids a chat becomes."""
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
"""Share of the documents, over all splits, that a chat template may alter without a setting that allows it."""
EMPTY, LONG, CUT, ALTERED, CONTROL, REPLACED = "empty", "long", "cut", "altered", "control", "replaced"
SAID = {
    EMPTY: "left out, without a question or an answer",
    LONG: "left out, without room for the answer in a row of seq_len tokens",
    CUT: "cut at the end of a row of seq_len tokens",
    ALTERED: "the tokenizer's chat template drops a part of the text",
    CONTROL: "control tokens of the tokenizer in the text, encoded as text",
    REPLACED: "U+FFFD in the text, which was decoded in another encoding than it was written in",
}


class Tally:
    """Counts the documents of one split by what happens to them."""

    def __init__(self) -> None:
        self.documents = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def add(self, index: int, kinds: Iterable[str]) -> None:
        """One document. `index` is its row in the split of the source."""
        self.documents += 1
        for kind in kinds:
            self.counts[kind] += 1
            self.first[kind] = min(index, self.first.get(kind, index))

    def describe(self, split: str) -> Iterator[str]:
        """One sentence per kind that occurs."""
        for kind, said in SAID.items():
            if count := self.counts[kind]:
                yield f"{split}: {count} of {self.documents} documents: {said}; first row {self.first[kind]}"


def keeps_text(text: str, rendered: str) -> bool:
    """Whether a rendered turn holds a text; templates may change white space."""
    return text.strip() in rendered or "".join(text.split()) in "".join(rendered.split())


def refuse_altered(config: Config, counted: Mapping[str, Any]) -> None:
    """Refuses texts of which the chat template drops too many parts.

    Args:
        counted: of index.json: the documents of all splits, and those of them that the template alters.

    Raises:
        DataMissing: above `MOST_ALTERED`, unless the settings allow it.
    """
    documents, altered = counted["documents"], counted[ALTERED]
    if config.allow_altered_answers or altered <= MOST_ALTERED * documents:
        return
    raise DataMissing(
        f"TRAINER_TOKENIZER={tokenizer_source(config)!r}: its chat template drops a part of the text of {altered} of "
        f"{documents} documents, as some do with the reasoning before </think>; at most {MOST_ALTERED:.0%} of them "
        "may be altered; name a tokenizer whose template keeps it, take that part out of the data, or allow it with "
        "TRAINER_ALLOW_ALTERED_ANSWERS=true [SL-answers-altered]"
    )


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
    except Exception as failure:  # jinja's own, and whatever a template raises
        raise ConfigError(
            f"TRAINER_TOKENIZER: its chat template refuses the document of row {index}: {failure} "
            "[SL-chat-template-refuses]"
        ) from failure
    if not whole.startswith(prompt):
        raise ConfigError(
            "TRAINER_TOKENIZER: its chat template does not put the answer behind its generation prompt, so "
            f"that they cannot be told apart: {prompt!r} is no beginning of {whole!r} [SL-chat-template-order]"
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
        # one group, so that `split` keeps what it finds; never matches without tokens
        self._tokens, self._hidden = (
            re.compile(f"({'|'.join(map(re.escape, each)) or '(?!)'})")
            for each in (tokens, [_hide(token) for token in tokens])
        )

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
