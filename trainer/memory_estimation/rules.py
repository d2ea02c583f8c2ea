"""Rules for runs that can be counted, and the settings that an operations file keeps; without torch.

They are the rules of the run itself, and further ones for settings that cannot be counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from stratlab_spec.layout.mesh_rules import shape_problems
from stratlab_spec.memory.profiles import IRRELEVANT
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import broken_deepspeed_rules
from stratlab_spec.strategies import STRATEGIES


def read_countable(env: Mapping[str, str], ranks: int, rank: int, per_node: int) -> Config:
    """Return the settings of `env` if rank `rank` of `ranks`, of which `per_node` share a node, can be counted.

    Raises:
        ConfigError: naming every broken rule at once.
        DataMissing: a model whose shape is not available.
    """
    problems = list(_rank_problems(ranks, rank, per_node))
    try:
        config = Config.from_env(env)
    except ConfigError as failure:
        raise ConfigError(failure.problems + problems) from None
    problems += shape_problems(config, ranks, per_node)
    problems += broken_deepspeed_rules(config, ranks, per_node, env=env, gpu=False)
    problems += _uncounted(config)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return config


def _rank_problems(ranks: int, rank: int, per_node: int) -> Iterator[str]:
    if not 0 <= rank < ranks:
        yield f"--rank={rank}: expected 0 to {ranks - 1}, of --ranks={ranks} [SL-count-rank-outside]"
    if ranks % per_node:
        yield f"--per-node={per_node}: does not divide --ranks={ranks} [SL-count-per-node-indivisible]"


def _uncounted(config: Config) -> Iterator[str]:
    if config.mode != "train":
        yield f"TRAINER_MODE={config.mode!r}: only training is counted; expected train [SL-count-mode]"
    if STRATEGIES[config.strategy].file == "ddp" and config.reduce_dtype != "fp32":
        yield (
            f"TRAINER_REDUCE_DTYPE={config.reduce_dtype}: cannot be counted with {config.strategy}, because its "
            "conversion waits for a collective that the count does not have; expected fp32 [SL-count-reduce-dtype]"
        )
    if config.compile:
        yield (
            "TRAINER_COMPILE=true: cannot be counted, compiled code has no operators to follow; "
            "expected false [SL-count-compile]"
        )
    if config.is_text and config.precision == "fp32" and read_shape(config).experts:
        yield (
            "TRAINER_PRECISION=fp32: grouped products of experts are only counted in 16 bits; expected auto, bf16, "
            "bf16_native or fp16 [SL-count-experts-fp32]"
        )
    if config.model == "cnn_lstm" and not config.model_path:
        yield (
            "TRAINER_MODEL='cnn_lstm': cannot be counted, a CPU's LSTM keeps other things than cuDNN's "
            "[SL-count-lstm]"
        )


BATCH = ("global_batch_size", "micro_batch_size")
"""Scaled, or in `accumulates`."""
TEXT_ALONE = ("seq_len", "packing", "loss_chunk_tokens")
IMAGES_ALONE = ("image_size", "augment", "batch_norm", "label_smoothing")


def settings_that_matter(config: Config, scaled: tuple[str, ...]) -> dict[str, Any]:
    """Return setting -> value of all settings that are in no table here: a new setting counts as one that matters.

    Args:
        scaled: settings for whose values the file has an answer.
    """
    left_out = {*IRRELEVANT, *BATCH, *scaled, "task", *(IMAGES_ALONE if config.is_text else TEXT_ALONE)}
    given = config.model_dump(exclude=left_out)
    return {name: given[name] for name in sorted(given)}


def defaults_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of each setting; `precision` as on a current GPU."""
    found = {name: Config.model_fields[name].default for name in settings}
    return found | {"precision": "bf16"}


def build_key(content: Mapping[str, Any]) -> str:
    """Return a hash of the settings on which the figures of a file depend."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
