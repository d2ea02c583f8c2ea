"""A language model's config.json, as transformers writes it: which shape it describes, and what is not built here.

`decoder_problems` is what the check before the ranks can refuse of a language model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder import (
    FAMILIES,
    SHAPES,
    TEXT_HUB_IDS,
    DecoderShape,
    decoder_size_problems,
    hub_id,
    resize_decoder,
)
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import TEXT_MODELS
from stratlab_spec.settings.library_rules import refused_compositions


def read_shape(config: Config) -> DecoderShape:
    """The preset of `model` with the sizes that are given, or the config.json of `model_path` or of a hub id.

    Raises:
        ConfigError: the model is none of the families we have.
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


def shape_of_json(content: dict[str, Any], named: str) -> DecoderShape:
    """The shape that a config.json of transformers describes.

    Args:
        named: the setting that led to it, for the error.

    Raises:
        ConfigError: another family, or a part of it that is not built here; everything at once.
    """
    family = str(content.get("model_type", ""))
    if family not in FAMILIES:
        problem = f"model_type {family!r}, expected one of {', '.join(FAMILIES)} [SL-decoder-family]"
        raise ConfigError(f"{named}: {problem}")
    content = {**FAMILIES[family].unsaid, **content}
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    if problems := [f"{named}: {problem}" for problem in _parts_not_built(family, content, rope)]:
        raise ConfigError(problems)
    moe = FAMILIES[family].experts
    heads, hidden = content["num_attention_heads"], content["hidden_size"]
    return DecoderShape(
        family=family,
        layers=content["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=content.get("num_key_value_heads") or heads,
        head_dim=content.get("head_dim") or hidden // heads,
        intermediate=content["intermediate_size"],
        vocab=content["vocab_size"],
        tied=bool(content.get("tie_word_embeddings", False)),
        experts=(content.get("num_experts") or content["num_local_experts"]) if moe else 0,
        experts_per_token=content["num_experts_per_tok"] if moe else 0,
        expert_intermediate=content["moe_intermediate_size"] if moe else 0,
        rope_theta=float(rope.get("rope_theta") or content.get("rope_theta") or 10_000.0),
        norm_eps=float(content.get("rms_norm_eps", 1e-6)),
        max_positions=content.get("max_position_embeddings", 32768),
        norm_top_k=bool(content.get("norm_topk_prob", False)) if moe else True,
    )


_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_NEEDED_MOE = ("num_experts_per_tok", "moe_intermediate_size")


def _parts_not_built(family: str, content: dict[str, Any], rope: dict[str, Any]) -> Iterator[str]:
    moe, biased = FAMILIES[family].experts, FAMILIES[family].qkv_bias
    needed = _NEEDED + (_NEEDED_MOE if moe else ())
    unsaid = [name for name in needed if not content.get(name)]
    if moe and not (content.get("num_experts") or content.get("num_local_experts")):
        unsaid.append("num_experts")
    for name in unsaid:
        yield f"its config.json does not say {name} [SL-decoder-json-incomplete]"
    yield from _windows(content)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        yield f"rope_type {kind!r}, expected 'default' [SL-decoder-rope]"
    if content.get("hidden_act", "silu") != "silu":
        yield f"hidden_act {content['hidden_act']!r}, expected 'silu' [SL-decoder-activation]"
    if moe and (content.get("mlp_only_layers") or content.get("decoder_sparse_step", 1) != 1):
        wanted = "expected experts in every layer"
        yield f"mlp_only_layers or decoder_sparse_step: {wanted} [SL-decoder-sparse-step]"
    bias = content.get("attention_bias")
    if bias is not None and bool(bias) != biased:
        yield f"attention_bias={json.dumps(bias)}, expected {json.dumps(biased)} [SL-decoder-bias]"
    for name, value in FAMILIES[family].off.items():
        trained_with = name.endswith(("dropout", "pdrop"))  # nothing is dropped here
        if name not in _WINDOWS and not trained_with and name in content and content[name] != value:
            yield f"{name}={json.dumps(content[name])}, expected {json.dumps(value)} [SL-decoder-part]"


_WINDOWS = ("use_sliding_window", "sliding_window")
"""Judged together: a width that is switched off is none."""


def _windows(content: dict[str, Any]) -> Iterator[str]:
    """Families say it in different ways: with a switch beside the width, by the width alone, or layer by layer."""
    wanted = "every layer looks at the whole document"
    width = content.get("sliding_window")
    if content.get("use_sliding_window"):
        yield f"use_sliding_window=true, expected false: {wanted} [SL-decoder-window-switch]"
    elif width and "use_sliding_window" not in content:
        yield f"sliding_window={width}, expected null: {wanted} [SL-decoder-window]"
    if others := sorted({*(content.get("layer_types") or ())} - {"full_attention"}):
        yield (
            f"layer_types with {', '.join(others)}, expected full_attention alone: {wanted} "
            "[SL-decoder-layer-types]"
        )


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
