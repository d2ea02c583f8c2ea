"""Find the shape of a run's language model, and the settings that it does not support.

`read_shape` takes it from a preset or a config.json. `decoder_problems` checks the settings before the ranks start.
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
    """Return the preset of `model` with the configured sizes, or the shape in the config.json of a folder or hub id.

    Raises:
        ConfigError: the trainer does not support the model.
        DataMissing: its config.json is not available.
    """
    if not config.model_path and config.model in SHAPES:
        return resize_decoder(SHAPES[config.model], config)
    return shape_of_json(read_json(config), config.model_setting)


def read_json(config: Config) -> dict[str, Any]:
    """Return the content of the config.json in `model_path` or of a hub id.

    Raises:
        ConfigError: the model is neither a folder nor a hub id.
        DataMissing: the file is not available.
    """
    if not config.model_path and "/" not in config.model:
        raise ConfigError(
            f"TRAINER_MODEL={config.model!r}: not a language model; expected one of {', '.join(TEXT_MODELS)}, a hub "
            "id (owner/name), or a folder in TRAINER_MODEL_PATH [SL-model-no-text]"
        )
    try:
        if config.model_path:
            path = Path(config.model_path) / "config.json"
        else:
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(config.model, "config.json"))
        content = json.loads(path.read_text())
    except Exception as failure:  # errors of network, disk and JSON mean that it is not available
        raise DataMissing(
            f"{config.model_setting}: expected a language model in Hugging Face format; its config.json "
            f"cannot be read: {failure} [SL-decoder-json-unreadable]"
        ) from failure
    return content if isinstance(content, dict) else {}


def decoder_problems(config: Config) -> list[str]:
    """Return one sentence per unsupported setting of a language model; the hub is not contacted."""
    if config.model_path and not Path(config.model_path).is_dir():
        return [no_folder(config)]
    problems: list[str] = []
    shape = None  # None = only the hub knows the model
    if config.model_path or "/" not in config.model:
        try:
            shape = read_shape(config)
        except ConfigError as failure:
            return failure.problems
        except DataMissing as failure:
            return [str(failure)]
    if shape and config.seq_len > shape.max_positions:
        problems.append(too_long(config, shape.max_positions))
    if config.strategy != "nd":  # nd checks them with its axes: stratlab_spec/layout/layout_rules.py
        problems += refused_compositions(config, experts=shape.experts > 0) if shape else ()
        problems += size_problems(config)
    problems += _weights_problems(config)
    if any(target.split(".")[-1] == "lm_head" for target in config.lora_targets.split(",")):
        wanted = "name projections of the layers instead"
        problems.append(f"TRAINER_LORA_TARGETS: LoRA does not adapt lm_head; {wanted} [SL-lora-lm-head]")
    return problems


def size_problems(config: Config) -> list[str]:
    """Return one sentence per rule that the configured sizes of a preset break."""
    preset = None if config.model_path else SHAPES.get(config.model)
    return [*decoder_size_problems(preset, config)] if preset else []


def _weights_problems(config: Config) -> Iterator[str]:
    if config.init != "pretrained":
        return
    if config.model_path and not list(Path(config.model_path).glob("*.safetensors")):
        yield no_weights(f"TRAINER_MODEL_PATH={config.model_path!r}")
    elif "quantization_config" in _content(config):
        yield (
            f"{config.model_setting}: its weights are quantized, which the trainer does not support; use weights of "
            "16 or 32 bits [SL-decoder-quantized]"
        )
    elif not config.model_path and not hub_id(config):
        yield unpublished(config.model, TEXT_HUB_IDS)


def _content(config: Config) -> dict[str, Any]:
    if config.model_path or "/" in config.model:
        try:
            return read_json(config)
        except DataMissing:  # `decoder_problems` reports it
            return {}
    return {"quantization_config": {}} if config.model in QUANTIZED else {}


def no_folder(config: Config) -> str:
    """Return the message for a `model_path` that does not exist."""
    return f"TRAINER_MODEL_PATH={config.model_path!r}: no such folder [SL-model-folder-absent]"


def no_weights(named: str) -> str:
    """Return the message for a folder without tensors.

    Args:
        named: the setting that names the folder.
    """
    return (
        f"{named}: the folder lacks *.safetensors, which TRAINER_INIT='pretrained' loads [SL-weights-absent]"
    )


def too_long(config: Config, positions: int) -> str:
    """Return the message for rows that exceed the model's positions."""
    return (
        f"TRAINER_SEQ_LEN={config.seq_len}: {config.model_name} supports at most {positions} positions "
        "[SL-seq-len-above-model]"
    )


def unpublished(name: str, having: Iterable[str]) -> str:
    """Return the message for a model without published weights.

    Args:
        having: the models with published weights.
    """
    return (
        f"TRAINER_INIT='pretrained': {name} lacks published weights; use one of {', '.join(having)}, a model on the "
        "hub (owner/name), or a folder in TRAINER_MODEL_PATH [SL-weights-unpublished]"
    )
