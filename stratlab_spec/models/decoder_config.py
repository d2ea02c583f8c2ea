"""Which shape the language model of a run has, and what cannot work with it.

`decoder_problems` is what the check before the ranks can refuse of a language model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder import DecoderShape
from stratlab_spec.models.decoder_json import decoder_size_problems, resize_decoder, shape_of_json
from stratlab_spec.models.decoder_presets import QUANTIZED, SHAPES, TEXT_HUB_IDS, hub_id
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import TEXT_MODELS
from stratlab_spec.settings.library_rules import refused_compositions


def read_shape(config: Config) -> DecoderShape:
    """The preset of `model` with the sizes that are given, or the config.json of `model_path` or of a hub id.

    Raises:
        ConfigError: the model is no decoder that can be trained here.
        DataMissing: there is no config.json to be had.
    """
    if not config.model_path and config.model in SHAPES:
        return resize_decoder(SHAPES[config.model], config)
    return shape_of_json(read_json(config), config.model_setting)


def read_json(config: Config) -> dict[str, Any]:
    """The content of the config.json in `model_path` or of a hub id.

    Raises:
        ConfigError: the model is neither.
        DataMissing: there is no such file to be had.
    """
    if not config.model_path and "/" not in config.model:
        raise ConfigError(
            f"TRAINER_MODEL={config.model!r}: no language model, expected one of {', '.join(TEXT_MODELS)}, a hub "
            "id (owner/name), or a folder in TRAINER_MODEL_PATH [SL-model-no-text]"
        )
    try:
        if config.model_path:
            path = Path(config.model_path) / "config.json"
        else:
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(config.model, "config.json"))
        content = json.loads(path.read_text())
    except Exception as failure:  # network, disk, no JSON: all mean "not to be had"
        raise DataMissing(
            f"{config.model_setting}: expected a language model in Hugging Face format; its config.json "
            f"cannot be read: {failure} [SL-decoder-json-unreadable]"
        ) from failure
    return content if isinstance(content, dict) else {}


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
    if config.strategy != "nd":  # there with the axes: stratlab_spec/layout/layout_rules.py
        problems += refused_compositions(config, experts=shape.experts > 0) if shape else ()
        problems += size_problems(config)
    problems += _weights_problems(config)
    if any(target.split(".")[-1] == "lm_head" for target in config.lora_targets.split(",")):
        wanted = "expected projections of the layers"
        problems.append(f"TRAINER_LORA_TARGETS: lm_head gets no adapters, {wanted} [SL-lora-lm-head]")
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
    elif "quantization_config" in _content(config):
        yield (
            f"{config.model_setting}: its weights are quantized, which are not trained; expected weights of 16 or 32 "
            "bits [SL-decoder-quantized]"
        )
    elif not config.model_path and not hub_id(config):
        yield unpublished(config.model, TEXT_HUB_IDS)


def _content(config: Config) -> dict[str, Any]:
    if config.model_path or "/" in config.model:
        try:
            return read_json(config)
        except DataMissing:  # named elsewhere
            return {}
    return {"quantization_config": {}} if config.model in QUANTIZED else {}


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
