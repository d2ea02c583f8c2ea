"""Which tokenizer a run uses, without torch: `tokenizer`, else the model's own, else bytes for the tiny presets."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from trainer.failures import DataMissing
from trainer.settings.config import Config
from trainer.settings.fields import TEXT_MODELS

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
        from trainer.shapes.decoder_shapes import TEXT_HUB_IDS

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
            raise DataMissing(f"{_named(config)}: {_absence(source)}")
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
        raise DataMissing(f"{_named(config)}: {_absence(source)}")
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
    if config.tokenizer:
        return f"TRAINER_TOKENIZER={config.tokenizer!r}"
    if config.model_path:
        return f"TRAINER_MODEL_PATH={config.model_path!r}, TRAINER_TOKENIZER=''"
    return f"TRAINER_MODEL={config.model!r}, TRAINER_TOKENIZER=''"


def _absence(source: str) -> str:
    if not Path(source).is_dir():
        return "no such folder [SL-tokenizer-folder-absent]"
    return (
        "holds no tokenizer.json; name a tokenizer on the hub or a folder in TRAINER_TOKENIZER "
        "[SL-tokenizer-file-absent]"
    )
