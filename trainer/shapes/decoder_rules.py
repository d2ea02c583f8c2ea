"""What the check before the ranks can refuse of a language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer.failures import DataMissing
from trainer.settings.compile_rules import refused_compositions
from trainer.settings.config import Config, ConfigError
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_shapes import SHAPES, TEXT_HUB_IDS, hub_id
from trainer.shapes.sizes import decoder_size_problems


def decoder_problems(config: Config) -> list[str]:
    """One sentence per setting of a language model that cannot work, as far as that shows without the hub."""
    if config.model_path and not Path(config.model_path).is_dir():
        return [no_folder(config)]
    problems: list[str] = []
    shape = None  # of a model that only the hub knows
    if config.model_path or "/" not in config.model:
        try:
            shape = read_shape(config)
        except ConfigError as failure:
            return failure.problems
        except DataMissing as failure:
            return [str(failure)]
    if shape and config.seq_len > shape.max_positions:
        problems.append(too_long(config, shape.max_positions))
    if shape and config.strategy != "nd":  # there with the axes: trainer/layout/layout_rules.py
        problems += list(refused_compositions(config, experts=shape.experts > 0))
    if config.strategy != "nd":  # likewise
        problems += size_problems(config)
    problems += list(_weights_problems(config))
    if any(target.split(".")[-1] == "lm_head" for target in config.lora_targets.split(",")):
        problems.append(
            "TRAINER_LORA_TARGETS: lm_head gets no adapters, expected projections of the layers "
            "[SL-lora-lm-head]"
        )
    return problems


def size_problems(config: Config) -> list[str]:
    """One sentence per rule that the sizes given instead of a preset's own break."""
    preset = None if config.model_path else SHAPES.get(config.model)
    return [*decoder_size_problems(preset, config)] if preset else []


def _weights_problems(config: Config) -> Iterator[str]:
    if config.init != "pretrained":
        return
    if config.model_path and not list(Path(config.model_path).glob("*.safetensors")):
        yield no_weights(f"TRAINER_MODEL_PATH={config.model_path!r}")
    elif not config.model_path and not hub_id(config):
        yield unpublished(config.model, TEXT_HUB_IDS)


def no_folder(config: Config) -> str:
    """The sentence for a `model_path` where nothing is."""
    return f"TRAINER_MODEL_PATH={config.model_path!r}: no such folder [SL-model-folder-absent]"


def no_weights(named: str) -> str:
    """The sentence for a folder without tensors.

    Args:
        named: the setting that led to it.
    """
    return f"{named}: holds no *.safetensors, which TRAINER_INIT='pretrained' loads [SL-weights-absent]"


def too_long(config: Config, positions: int) -> str:
    """The sentence for rows that are longer than the model."""
    return (
        f"TRAINER_SEQ_LEN={config.seq_len}: {config.model_name} knows {positions} positions "
        "[SL-seq-len-above-model]"
    )


def unpublished(name: str, having: Iterable[str]) -> str:
    """The sentence for a network without published weights.

    Args:
        having: those that have some.
    """
    return (
        f"TRAINER_INIT='pretrained': nobody has published weights of {name}; there are some of {', '.join(having)} and "
        "of models on the hub (owner/name), or name a folder in TRAINER_MODEL_PATH [SL-weights-unpublished]"
    )
