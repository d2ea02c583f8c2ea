"""What keeps a run from training on text, as far as that can be told before the ranks start."""

from __future__ import annotations

from trainer.data.text.cache import cache_folder
from trainer.data.text.fidelity import refuse_altered
from trainer.data.text.rows import read_index
from trainer.data.text.tokenizer import count_vocabulary, load_tokenizer, tokenizer_source
from trainer.settings.config import Config
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_rules import too_long
from trainer.shapes.decoder_shapes import SHAPES

IMAGES = ("digits", "synthetic", "cifar100", "food101")


def text_problems(config: Config) -> list[str]:
    """One sentence per setting that does not fit, without torch.

    Raises:
        DataMissing: no such tokenizer, a model whose shape is not to be had, or answers that a token cache has lost.
    """
    problems = []
    if not config.dataset_path and config.dataset in IMAGES:
        problems.append(
            f"TRAINER_DATASET={config.dataset!r}: holds images, and {config.model_name} reads text; use arithmetic, "
            "metamathqa, the hub id of a data set with the columns query and response, or TRAINER_DATASET_PATH "
            "[SL-images-for-text]"
        )
        return problems + _vocabulary_problems(config, None)
    longest = read_shape(config).max_positions
    if config.seq_len > longest:
        problems.append(too_long(config, longest))
    index = read_index(cache_folder(config))
    if index:
        refuse_altered(config, index["fidelity"])
    return problems + _vocabulary_problems(config, index["vocab"] if index else None)


def _vocabulary_problems(config: Config, vocab: int | None) -> list[str]:
    needed = count_vocabulary(load_tokenizer(config)) if vocab is None else vocab
    room = read_shape(config).vocab
    if needed <= room:
        return []
    named = f"TRAINER_TOKENIZER={tokenizer_source(config)!r}"
    widened = config.model in SHAPES and not config.model_path and config.init == "scratch"
    cure = f"set TRAINER_MODEL_VOCAB={needed}, or " if widened else ""
    return [
        f"{named}: has {needed} tokens, {config.model_name} has room for {room}; {cure}use the model's own tokenizer "
        "[SL-tokenizer-above-model]"
    ]
