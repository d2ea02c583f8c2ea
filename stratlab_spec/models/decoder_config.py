"""Find the shape of a run's language model, and the settings that it does not support.

`read_shape` takes it from a preset or a config.json. `decoder_problems` checks the settings before the ranks start.

`SHAPES` holds published decoders by name, as their config.json on the hub describes them, and small ones for tests.
Entries that equal transformers' defaults are omitted. `hub_id` names the model on the hub that a run needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder import DecoderShape
from stratlab_spec.models.decoder_json import decoder_size_problems, resize_decoder, shape_of_json
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import TEXT_MODELS
from stratlab_spec.settings.library_rules import refused_compositions


def _sizes(
    layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int, positions: int
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
    }


def _llama3(sizes: dict[str, Any], tied: bool, factor: float) -> dict[str, Any]:
    """Return the content for Llama 3.1 and 3.2 (config.json of meta-llama/Llama-3.*)."""
    rope = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {
        "model_type": "llama",
        **sizes,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": factor, **rope},
    }


def _qwen(family: str, sizes: dict[str, Any], tied: bool, **others: Any) -> dict[str, Any]:
    """Return the content for Qwen2.5-Instruct and Qwen3 (config.json of Qwen/*)."""
    common = {"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-6, "use_sliding_window": False}
    return {"model_type": family, **sizes, "tie_word_embeddings": tied, **common, **others}


_TINY = {"head_dim": 16, "rope_theta": 10_000.0}
_PRESETS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _qwen("qwen2", _sizes(24, 896, 14, 2, 4864, 151936, 32768), True),
    "qwen2.5-1.5b": _qwen("qwen2", _sizes(28, 1536, 12, 2, 8960, 151936, 32768), True),
    "qwen2.5-3b": _qwen("qwen2", _sizes(36, 2048, 16, 2, 11008, 151936, 32768), True),
    "qwen2.5-7b": _qwen("qwen2", _sizes(28, 3584, 28, 4, 18944, 152064, 32768), False),
    "qwen3-0.6b": _qwen("qwen3", _sizes(28, 1024, 16, 8, 3072, 151936, 40960), True, head_dim=128),
    "qwen3-4b": _qwen("qwen3", _sizes(36, 2560, 32, 8, 9728, 151936, 40960), True, head_dim=128),
    "qwen3-8b": _qwen("qwen3", _sizes(36, 4096, 32, 8, 12288, 151936, 40960), False, head_dim=128),
    "llama-3.2-1b": _llama3(_sizes(16, 2048, 32, 8, 8192, 128256, 131072), True, 32.0),
    "llama-3.2-3b": _llama3(_sizes(28, 3072, 24, 8, 8192, 128256, 131072), True, 32.0),
    "llama-3.1-8b": _llama3(_sizes(32, 4096, 32, 8, 14336, 128256, 131072), False, 8.0),
    "mistral-7b": {
        "model_type": "mistral",
        **_sizes(32, 4096, 32, 8, 14336, 32768, 32768),
        "sliding_window": None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    },
    "gemma-2-2b": {
        "model_type": "gemma2",
        **_sizes(26, 2304, 8, 4, 9216, 256_000, 8192),
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rope_theta": 10_000.0,
    },
    "gemma-3-4b": {
        "model_type": "gemma3_text",
        **_sizes(34, 2560, 8, 4, 10240, 262_208, 131_072),
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi-3-mini": {
        "model_type": "phi3",
        **_sizes(32, 3072, 32, 32, 8192, 32064, 4096),
        "sliding_window": 2047,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
    },
    "olmo-2-7b": {
        "model_type": "olmo2",
        **_sizes(32, 4096, 32, 32, 11008, 100_352, 4096),
        "rms_norm_eps": 1e-6,
        "rope_theta": 500_000.0,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        **_sizes(32, 4096, 32, 8, 14336, 32_000, 32768),
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    },
    "qwen3-30b-a3b": _qwen(
        "qwen3_moe",
        _sizes(48, 2048, 32, 4, 6144, 151936, 40960),
        False,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
    ),
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        **_sizes(24, 2880, 64, 8, 2880, 201_088, 131_072),
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "attention_bias": True,
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "qwen_tiny": _qwen("qwen2", _sizes(4, 64, 4, 2, 128, 320, 4096), True) | _TINY,
    "qwen_moe_tiny": _qwen(
        "qwen3_moe",
        _sizes(4, 64, 4, 2, 128, 320, 4096),
        False,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        norm_topk_prob=True,
    )
    | _TINY,
}
SHAPES: dict[str, DecoderShape] = {name: shape_of_json(content, name) for name, content in _PRESETS.items()}
TEXT_HUB_IDS = {
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "gemma-2-2b": "google/gemma-2-2b",
    "gemma-3-4b": "google/gemma-3-4b-pt",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B",
    "gpt2": "openai-community/gpt2",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "gpt-oss-20b": "openai/gpt-oss-20b",
}
"""Name -> hub id of the published weights that init=pretrained loads."""
QUANTIZED = ("gpt-oss-20b",)
"""Models with published weights of fewer than 16 bits."""


def hub_id(config: Config) -> str:
    """Return the hub id that provides this run's configuration or weights; "" without one."""
    if config.model_path:
        return ""
    if config.model in SHAPES:
        return TEXT_HUB_IDS.get(config.model, "") if config.init == "pretrained" else ""
    return config.model


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
        ConfigError: the model is neither a folder nor a hub id, or the file is not JSON.
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
        data = path.read_bytes()
    except Exception as failure:  # errors of network and disk mean that it is not available
        raise DataMissing(
            f"{config.model_setting}: expected a language model in Hugging Face format; its config.json "
            f"cannot be read: {failure} [SL-decoder-json-unreadable]"
        ) from failure
    return parse_json(data, config.model_setting)


def parse_json(data: bytes, named: str) -> dict[str, Any]:
    """Return the content of a config.json.

    Raises:
        ConfigError: it is not one JSON object in UTF-8.
    """
    try:
        content = json.loads(data.decode("utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("expected an object")
    except (ValueError, RecursionError) as failure:
        told = f"its config.json is not a JSON object in UTF-8: {failure}"
        raise ConfigError(f"{named}: {told} [SL-decoder-json-invalid]") from None
    return content


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
        except (ConfigError, DataMissing):  # `decoder_problems` reports it
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
        f"TRAINER_SEQ_LEN={config.seq_len}: {config.model_name} supports at most {positions} positions; set "
        f"TRAINER_SEQ_LEN={positions} or less [SL-seq-len-above-model]"
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
