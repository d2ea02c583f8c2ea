"""Load the tokenizer of a run and render chats with its template, without torch.

`load_tokenizer` loads the setting `tokenizer`, else the model's own tokenizer, else bytes for the tiny presets.

`render_chat` also finds the characters that the model learns. A template may mark them itself (`{% generation %}`).
With other templates, the chat before a turn of the assistant is rendered with the prompt for the next answer; the turn
begins at the end of that text.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import TEXT_MODELS
from trainer.data.text.text_form import Turn, Turns

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
OWN_TEMPLATES = (CHATML, _TURNS)
"""Templates of the trainer, which accept any roles."""
GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")
"""Tag of a template that marks what the assistant generates."""


def tokenizer_source(config: Config) -> str:
    """Return `bytes` (also as `tokenizer`), a folder, or an id on the hub."""
    if config.tokenizer:
        return config.tokenizer
    if config.model_path:
        return config.model_path
    if config.model in TEXT_MODELS:
        from stratlab_spec.models.decoder_config import TEXT_HUB_IDS

        return TEXT_HUB_IDS.get(config.model, BYTES)  # a preset without published weights lacks a tokenizer
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
    except Exception as failure:  # any error of the hub's client or a parser: not available
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
            "tokenizer.json is missing; name a tokenizer on the hub or a folder in TRAINER_TOKENIZER "
            "[SL-tokenizer-file-absent]"
        )
    return DataMissing(f"{_named(config)}: {lacks}")


Span = tuple[int, int]
"""First character and the one after the last."""


def render_with_mask(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[str, list[Span]] | None:
    """Return a rendered chat and the characters that its template marks as generated; None if it marks none."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = tokenizer.get_chat_template()
    if not GENERATION.search(template):
        return None
    rendered, spans = render_jinja_template(
        [messages],
        chat_template=template,
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    return rendered[0], [(start, end) for start, end in spans[0]]


Messages = list[dict[str, str]]


class Rendered(NamedTuple):
    """A text and its learned characters, in order and without overlap."""

    text: str
    spans: list[Span]


class ChatRefused(ConfigError):
    """A chat that cannot be rendered."""


def arrange_turns(turns: Turns) -> tuple[Turns, bool]:
    """Return turns that begin with a question and alternate, and whether that changed them.

    Other roles than the assistant's become the user's, except for a system text at the start. Texts of one role that
    follow each other are joined by an empty line. Answers before the first question are dropped.
    """
    found: Turns = []
    for turn in turns:
        at_start = not found or found[-1].role == "system"
        role = turn.role if turn.role == "assistant" or (turn.role == "system" and at_start) else "user"
        if found and found[-1].role == role:
            found[-1] = Turn(role, f"{found[-1].text}\n\n{turn.text}")
        elif role != "assistant" or (found and found[-1].role == "user"):
            found.append(Turn(role, turn.text))
    return found, found != turns


def render_chat(
    tokenizer: Any, controls: re.Pattern[str], turns: Turns, row: str, *, merges: bool
) -> Rendered:
    """Return the rendered chat up to the end of its last answer.

    Args:
        controls: matches control tokens.
        row: where the chat is stored, for messages.
        merges: if the template rejects a system text, put it in front of the first question.

    Raises:
        ChatRefused: the template rejects a turn, or does not put an answer after its own prompt.
    """
    if tokenizer.get_chat_template() in OWN_TEMPLATES and (wrong := _find_unexpected(turns)) is not None:
        raise refuse_turn(turns, wrong, row, "turns must alternate, user first")
    messages = [{"role": turn.role, "content": turn.text} for turn in turns]
    try:
        marked = render_with_mask(tokenizer, messages)
        whole = marked[0] if marked else tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as failure:  # errors of jinja or of the template itself
        if merges and turns[0].role == "system" and len(turns) > 1:
            first = Turn(turns[1].role, f"{turns[0].text}\n\n{turns[1].text}")
            return render_chat(tokenizer, controls, [first, *turns[2:]], row, merges=False)
        raise refuse_turn(turns, _find_rejected(tokenizer, messages), row, str(failure)) from failure
    spans = marked[1] if marked else _find_answers(tokenizer, controls, messages, whole, row)
    if not spans:
        raise _no_answer(row, "it marks no text as generated", whole)
    end = max(spans[-1][1], len(whole.rstrip()))
    return Rendered(whole[:end], spans)


def _find_answers(
    tokenizer: Any, controls: re.Pattern[str], messages: Messages, whole: str, row: str
) -> list[Span]:
    spans, done = [], len(whole.rstrip())
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = messages[:number]
        prompt = tokenizer.apply_chat_template(before, tokenize=False, add_generation_prompt=True)
        if not whole.startswith(prompt):
            raise _no_answer(row, f"{prompt!r} is not the start of it", whole)
        start, end = len(prompt), done
        if number < len(messages) - 1:
            until = tokenizer.apply_chat_template(messages[: number + 1], tokenize=False).rstrip()
            end = len(until)
            if not whole.startswith(until):  # templates may format the last answer differently
                end = _find_end(controls, message["content"].strip(), whole, start)
        spans.append((start, end))
    return spans


def _find_end(controls: re.Pattern[str], answer: str, whole: str, start: int) -> int:
    """Return the end of the first control token after the answer, else the end of the answer."""
    found = whole.find(answer, start)
    end = start if found < 0 else found + len(answer)
    token = controls.search(whole, end)
    return token.end() if token else end


def _find_unexpected(turns: Turns) -> int | None:
    """Return the first turn that is not in the order system, user, assistant, user, ...; None if all are."""
    asked = [number for number, turn in enumerate(turns) if number or turn.role != "system"]
    for place, number in enumerate(asked):
        if turns[number].role != ("user", "assistant")[place % 2]:
            return number
    return None


def _find_rejected(tokenizer: Any, messages: Messages) -> int:
    """Return the first turn with which the template fails."""
    for number in range(len(messages)):
        try:
            tokenizer.apply_chat_template(messages[: number + 1], tokenize=False)
        except Exception:  # this turn is the searched one
            return number
    return len(messages) - 1


def refuse_turn(turns: Turns, number: int, row: str, reason: str) -> ChatRefused:
    """Return the error for a turn of a row."""
    return ChatRefused(
        f"{row}: turn {number} has the role {turns[number].role}, which the chat template rejects: {reason}; correct "
        "the row, choose another TRAINER_TOKENIZER, or set TRAINER_CHAT_ROLES=merge [SL-chat-template-refuses]"
    )


def _no_answer(row: str, reason: str, whole: str) -> ChatRefused:
    return ChatRefused(
        f"{row}: the chat template of TRAINER_TOKENIZER does not put the answer after its generation prompt, so they "
        f"cannot be separated: {reason}: {whole!r} [SL-chat-template-order]"
    )
