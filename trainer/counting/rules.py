"""Which runs can be counted: every rule that the run itself would meet, and what cannot be counted; without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainer.layout.shape_rules import shape_problems
from trainer.settings.config import Config, ConfigError
from trainer.settings.deepspeed_rules import broken_deepspeed_rules
from trainer.settings.strategy_table import STRATEGIES
from trainer.shapes.decoder_json import read_shape


def read_countable(env: Mapping[str, str], ranks: int, rank: int, per_node: int) -> Config:
    """The settings of `env` if rank `rank` of `ranks`, of which `per_node` share a node, can be counted.

    Raises:
        ConfigError: naming every broken rule at once.
        DataMissing: a model whose shape is not to be had.
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
            f"TRAINER_REDUCE_DTYPE={config.reduce_dtype}: cannot be counted with {config.strategy}, whose conversion "
            "waits for a collective that is not there; expected fp32 [SL-count-reduce-dtype]"
        )
    if config.compile:
        yield (
            "TRAINER_COMPILE=true: cannot be counted, compiled code has no operators to follow; "
            "expected false [SL-count-compile]"
        )
    if config.is_text and config.precision == "fp32" and read_shape(config).experts:
        yield (
            "TRAINER_PRECISION=fp32: grouped products of experts are counted in 16 bits alone; expected auto, bf16, "
            "bf16_native or fp16 [SL-count-experts-fp32]"
        )
    if config.model == "cnn_lstm" and not config.model_path:
        yield (
            "TRAINER_MODEL='cnn_lstm': cannot be counted, a CPU's LSTM keeps other things than cuDNN's "
            "[SL-count-lstm]"
        )
