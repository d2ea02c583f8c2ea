"""What keeps a run from training on text, as far as that can be told before the ranks start."""

from __future__ import annotations

from trainer.data.text.cache import cache_folder
from trainer.data.text.rows import read_index
from trainer.data.text.tokenizer import count_vocabulary, load_tokenizer, tokenizer_source
from trainer.settings.config import Config
from trainer.shapes.decoder_json import read_shape

IMAGES = ("digits", "synthetic", "cifar100", "food101")


def text_problems(config: Config) -> list[str]:
    """One sentence per setting that does not fit, without torch.

    Raises:
        DataMissing: no such tokenizer, or a model whose shape is not to be had.
    """
    problems = []
    if not config.dataset_path and config.dataset in IMAGES:
        problems.append(
            f"TRAINER_DATASET={config.dataset!r}: holds images, and {config.model_name} reads text; use arithmetic, "
            "metamathqa, the hub id of a data set with the columns query and response, or TRAINER_DATASET_PATH"
        )
        return problems + _vocabulary_problems(config, None)
    longest = read_shape(config).max_positions
    if config.seq_len > longest:
        problems.append(
            f"TRAINER_SEQ_LEN={config.seq_len}: {config.model_name} was made for at most {longest} tokens"
        )
    index = read_index(cache_folder(config))
    return problems + _vocabulary_problems(config, index["vocab"] if index else None)


def _vocabulary_problems(config: Config, vocab: int | None) -> list[str]:
    needed = count_vocabulary(load_tokenizer(config)) if vocab is None else vocab
    room = read_shape(config).vocab
    if needed <= room:
        return []
    return [
        f"TRAINER_TOKENIZER={tokenizer_source(config)!r}: has {needed} tokens, {config.model_name} has room for "
        f"{room}; use the model's own tokenizer"
    ]
