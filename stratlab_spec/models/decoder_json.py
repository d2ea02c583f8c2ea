"""Read the shape of a decoder from transformers' config.json, and replace sizes by configured ones.

`shape_of_json` reads only the values that decide sizes, counts and rules, and rejects unsupported ones. transformers
builds the model from the same content (trainer/models/decoder.py). `resize_decoder` and `resize_vit` change the sizes
of presets; `decoder_size_problems` and `vit_size_problems` check the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from stratlab_spec.models.decoder import FAMILIES, DecoderShape, Family
from stratlab_spec.registry import DECODER_SIZES, VIT_SIZES, given_sizes
from stratlab_spec.settings.config import Config, ConfigError

if TYPE_CHECKING:
    from stratlab_spec.settings.fields import Settings

NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}
"""Size of a DecoderShape -> its name in a config.json."""
ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_sequence_length"),
}
"""Name in a config.json -> other spellings of some families."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""Supported values in `layer_types`."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
"""Types that depend only on a token's position, not on the longest row of a micro-batch."""


WIDEST, LONGEST, MOST_EXPERTS = 1 << 20, 1 << 32, 1 << 16
LONGEST_SHOWN = 60
"""Characters of a value in a message."""


def _find_most(setting: str) -> int:
    """Return the largest value of a setting."""
    return int(next(rule.le for rule in Config.model_fields[setting].metadata if hasattr(rule, "le")))


LIMITS = {
    **{NAMES[size]: (1, _find_most(setting)) for setting, size in DECODER_SIZES.items()},
    "head_dim": (1, _find_most("model_hidden")),
    "moe_intermediate_size": (1, WIDEST),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok"), (1, MOST_EXPERTS)),
    "max_position_embeddings": (1, LONGEST),
    "sliding_window": (0, LONGEST),
    "sliding_window_pattern": (1, LONGEST),
    **dict.fromkeys(("max_window_layers", "decoder_sparse_step"), (0, LONGEST)),
}
"""Number in a config.json -> (smallest, largest)."""
KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("rope_scaling", "rope_parameters"), (dict, "an object")),
    **dict.fromkeys(("layer_types", "mlp_only_layers"), (list, "a list")),
    **dict.fromkeys(
        ("tie_word_embeddings", "use_sliding_window", "attention_bias", "mlp_bias"), (bool, "true or false")
    ),
}
"""Other value in a config.json -> its type, and the type's name in messages."""


def _spelled(content: Mapping[str, Any], name: str) -> str:
    return name if name in content else next((one for one in ALIASES.get(name, ()) if one in content), name)


def text_part(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a config.json; a model for images and text nests it."""
    inner = content.get("text_config")
    return inner if isinstance(inner, dict) and inner.get("model_type") else content


def shape_of_json(content: Mapping[str, Any], named: str) -> DecoderShape:
    """Return the shape that a config.json of transformers describes.

    Args:
        named: the setting that names the model, for errors.

    Raises:
        ConfigError: not a decoder, unsupported parts, or sizes that do not fit each other; lists all of them.
    """
    shape = _read_shape(content, named)
    if problems := [f"{named}: {problem}" for problem in _misfits(shape)]:
        raise ConfigError(problems)
    return shape


def _read_shape(content: Mapping[str, Any], named: str) -> DecoderShape:
    content = text_part(content)
    model_type = content.get("model_type") or ""
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    said = {**(family.unsaid if family else {}), **content}
    said |= {name: content[alias] for name in ALIASES if (alias := _spelled(content, name)) in content}
    problems = [*_wrong_values(content, said)] or [*_parts_not_built(model_type, family, said)]
    if problems:
        raise ConfigError([f"{named}: {problem}" for problem in problems])
    heads, hidden, moe = said["num_attention_heads"], said["hidden_size"], bool(family and family.experts)
    layers, width = said["num_hidden_layers"], said.get("intermediate_size") or 4 * hidden
    return DecoderShape(
        family=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=said.get("num_key_value_heads") or heads,
        head_dim=said.get("head_dim") or hidden // heads,
        intermediate=width,
        vocab=said["vocab_size"],
        tied=bool(said.get("tie_word_embeddings", False)),
        experts=_experts(said) if moe else 0,
        experts_per_token=said["num_experts_per_tok"] if moe else 0,
        expert_intermediate=said[family.expert_width] if family and moe else 0,
        max_positions=said.get("max_position_embeddings") or 32768,
        biased=list_biased(family, said),
        windows=_windows(family, said, layers),
        arguments={name: value for name, value in content.items() if name != "model_type"},
    )


def _experts(said: Mapping[str, Any]) -> int:
    return int(said.get("num_experts") or said.get("num_local_experts") or 0)


def list_biased(family: Family | None, said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the projections with a bias of a family with these values in its config.json."""
    if family is None or family.biased:
        return family.biased if family else ()
    attention = ("q_proj", "k_proj", "v_proj", "o_proj") if said.get("attention_bias") else ()
    return attention + (("gate_proj", "up_proj", "down_proj") if said.get("mlp_bias") else ())


def _windows(family: Family | None, said: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return the window of each layer. Families write a switch and a width, only a width, or one type per layer."""
    width = said.get("sliding_window") or 0
    if "use_sliding_window" in said and not said["use_sliding_window"]:
        width = 0
    if not width:
        return ()
    period = said.get("sliding_window_pattern") or (family.window_period if family else 1)
    kinds = said.get("layer_types")
    if period == 1 and (family or not kinds):
        return (width,) * layers
    if not kinds and not period:
        if not said.get("use_sliding_window"):
            return ()
        first = 0 if family and family.experts else said.get("max_window_layers", 28)
        kinds = [SLIDING if layer >= first else FULL for layer in range(layers)]
    kinds = kinds or [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]
    return tuple(width if kind == SLIDING else 0 for kind in kinds)


def _wrong_values(content: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence per value of a wrong type or size; null stands for an absent one."""
    model_type = content.get("model_type")
    if not isinstance(model_type, str | None):
        yield f"model_type={_shorten(model_type)}: expected a string [SL-decoder-json-family]"
    for name, (least, most) in LIMITS.items():
        value = said.get(name)
        if value is None or (name == "sliding_window_pattern" and said.get("layer_types")):
            continue
        if type(value) is not int or not least <= value <= most:
            wanted = f"expected a whole number from {least} to {most}"
            yield f"{_spelled(content, name)}={_shorten(value)}: {wanted} [SL-decoder-json-number]"
    for name, (kind, wanted) in KINDS.items():
        value = said.get(name)
        if value is not None and not isinstance(value, kind):
            yield f"{name}={_shorten(value)}: expected {wanted} [SL-decoder-json-type]"
    if isinstance(kinds := said.get("layer_types"), list) and not all(isinstance(one, str) for one in kinds):
        yield f"layer_types={_shorten(kinds)}: expected a list of strings [SL-decoder-json-layers]"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _misfits(shape: DecoderShape) -> Iterator[str]:
    """Yield one sentence per size that does not fit another one, of families whose layers are known."""
    family = FAMILIES.get(shape.family)
    if family is None:
        return
    hidden, heads, kv_heads = (
        _spelled(shape.arguments, NAMES[one]) for one in ("hidden", "heads", "kv_heads")
    )
    splits = shape.family == "gpt2" or not shape.arguments.get("head_dim", family.unsaid.get("head_dim"))
    if splits and shape.hidden % shape.heads:
        yield (
            f"{hidden}={shape.hidden}: must be a multiple of {heads}={shape.heads} without head_dim "
            "[SL-decoder-json-hidden]"
        )
    elif shape.family != "gpt2" and shape.head_dim % 2:
        yield (
            f"heads of {shape.head_dim} numbers: rotary positions need an even width; change head_dim or {hidden} "
            "[SL-decoder-json-head-width]"
        )
    if shape.heads % shape.kv_heads:
        yield f"{kv_heads}={shape.kv_heads}: must divide {heads}={shape.heads} [SL-decoder-json-kv-heads]"
    if shape.experts_per_token > shape.experts:
        yield (
            f"num_experts_per_tok={shape.experts_per_token}: expected at most the number of experts, "
            f"{shape.experts} [SL-decoder-json-experts]"
        )
    if (kinds := shape.arguments.get("layer_types")) and len(kinds) != shape.layers:
        yield (
            f"layer_types: expected one for each of {shape.layers} layers, got {len(kinds)} "
            "[SL-decoder-json-layers-number]"
        )


_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


def _parts_not_built(model_type: str, family: Family | None, said: Mapping[str, Any]) -> Iterator[str]:
    if not model_type:
        yield "its config.json lacks model_type; expected a decoder of transformers [SL-decoder-family]"
        return
    needed = [*_NEEDED, *(["intermediate_size"] if family and model_type != "gpt2" else [])]
    if family and family.experts:
        needed += ["num_experts_per_tok", family.expert_width]
    absent = [name for name in dict.fromkeys(needed) if not said.get(name)]
    if family and family.experts and not _experts(said):
        absent.append("num_experts")
    for name in absent:
        yield f"its config.json lacks {name} [SL-decoder-json-incomplete]"
    for kind in sorted(_rope_types(said) - {*ROPE_TYPES}):
        yield f"rope_type {kind!r}, expected one of {', '.join(ROPE_TYPES)} [SL-decoder-rope]"
    if others := sorted({*(said.get("layer_types") or ())} - {FULL, SLIDING}):
        yield f"layer_types with {', '.join(others)}, expected {FULL} or {SLIDING} [SL-decoder-layer-types]"
    if said.get("mlp_only_layers") or (said.get("decoder_sparse_step") or 1) != 1:
        wanted = "expected experts in every layer"
        yield f"mlp_only_layers or decoder_sparse_step: {wanted} [SL-decoder-sparse-step]"
    if said.get("use_bidirectional_attention"):
        yield "use_bidirectional_attention: expected attention to earlier tokens only [SL-decoder-bidirectional]"
    if said.get("is_encoder_decoder"):
        yield "is_encoder_decoder: expected a decoder [SL-decoder-encoder]"


def _rope_types(said: Mapping[str, Any]) -> set[str]:
    rope = said.get("rope_parameters") or said.get("rope_scaling") or {}
    parts = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    return {str(part.get("rope_type", part.get("type", "default"))) for part in parts}


Vit = TypeVar("Vit", bound=Any)
"""A shape of stratlab_spec/models/model_specs.py, which imports this module."""


def resize_vit(preset: Vit, config: Settings) -> Vit:
    """Return the preset with the configured sizes, unchecked; see `vit_size_problems`."""
    return dataclasses.replace(preset, **given_sizes(config, VIT_SIZES))


def resize_decoder(preset: DecoderShape, config: Settings) -> DecoderShape:
    """Return the preset with the configured sizes.

    A head is hidden / heads wide if this holds in the preset. In a mixture of experts, `intermediate` is the width of
    each expert.
    """
    given = given_sizes(config, DECODER_SIZES)
    if not given:
        return preset
    names = NAMES | {"intermediate": _width_name(preset)}
    content: dict[str, Any] = {"model_type": preset.family, **preset.arguments}
    if "layers" in given:
        content.pop("layer_types", None)
    for name, value in given.items():
        content[_spelled(content, names[name])] = value
    if splits_hidden(preset):
        heads, hidden = (given.get(name, getattr(preset, name)) for name in ("heads", "hidden"))
        content["head_dim"] = max(1, hidden // heads)
    return _read_shape(content, f"TRAINER_MODEL={config.model!r}")


def _width_name(preset: DecoderShape) -> str:
    return FAMILIES[preset.family].expert_width if preset.experts else NAMES["intermediate"]


def splits_hidden(preset: DecoderShape) -> bool:
    """Return whether the widths of its heads sum to the hidden size."""
    return preset.queries == preset.hidden


def vit_size_problems(hidden: int, heads: int, config: Settings) -> Iterator[str]:
    """Yield one sentence per rule that the sizes of a vision transformer break."""
    if given_sizes(config, VIT_SIZES):
        yield from _hidden_problems(hidden, heads, even=False)


def decoder_size_problems(preset: DecoderShape, config: Settings) -> Iterator[str]:
    """Yield one sentence per rule that the sizes of a decoder break."""
    if not given_sizes(config, DECODER_SIZES):
        return
    shape = resize_decoder(preset, config)
    if splits_hidden(preset):
        yield from _hidden_problems(shape.hidden, shape.heads, even=True)
    if shape.heads % shape.kv_heads:
        fit = [n for n in range(1, shape.heads + 1) if shape.heads % n == 0]
        yield (
            f"TRAINER_MODEL_KV_HEADS={shape.kv_heads}: must divide heads={shape.heads}, expected one of "
            f"{', '.join(map(str, fit))} [SL-kv-heads]"
        )


def _hidden_problems(hidden: int, heads: int, even: bool) -> Iterator[str]:
    """Yield the problem; with `even` heads have even widths, because rotary positions rotate pairs of numbers."""
    step = heads * (2 if even else 1)
    if hidden % step:
        why = (
            f"2 x heads={heads} (rotary positions need an even width of each head)"
            if even
            else f"heads={heads}"
        )
        near = max(1, round(hidden / step)) * step
        yield (
            f"TRAINER_MODEL_HIDDEN={hidden}: must be a multiple of {why}, for example {near} "
            "[SL-hidden-heads]"
        )
