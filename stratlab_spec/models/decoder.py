"""Describe a language model without torch: its family, its parameters and its operations per token.

`parameter_shapes` names every parameter of a `DecoderShape`. The functions `count_*` derive sizes and FLOPs from it.
`split_layers` divides the layers among the stages of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratlab_spec.settings.config import Config, ConfigError

_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, kw_only=True)
class Family:
    """The layers of a family of decoders, as transformers builds them, and the dimensions over which nd splits them."""

    dims: tuple[str, ...] = ("pp", "tp", "cp")
    """In addition to the data dimensions; tp requires that transformers' tp plan splits q, k and v by heads."""
    biased: tuple[str, ...] = ()
    """Projections with a bias, in addition to the projections that attention_bias and mlp_bias select."""
    qk_norm: str = ""
    """Norms on q and k: over each `head` or over the `whole` width; "" without norms."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    fused: bool = False
    """Whether one matrix holds q, k and v, and another holds gate and up."""
    experts: bool = False
    """Whether every layer has experts."""
    expert_width: str = "intermediate_size"
    """Name of an expert's width in a config.json."""
    sinks: bool = False
    """Whether each head has a sink, a number that absorbs attention, and experts and their router have biases."""
    scores_kept: bool = False
    """Whether the attention stores all scores, because torch has no kernel for its soft cap or sinks."""
    window_period: int = 0
    """Of each group of this many layers, all except the last have a window; 1 = all layers, 0 = see config.json."""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """The defaults of transformers for settings that a config.json omits."""


_POSITIONS = "max_position_embeddings"
FAMILIES = {
    "llama": Family(unsaid={_POSITIONS: 2048}),
    "mistral": Family(
        window_period=1, unsaid={"sliding_window": 4096, "num_key_value_heads": 8, _POSITIONS: 131_072}
    ),
    "qwen2": Family(biased=("q_proj", "k_proj", "v_proj")),
    "qwen3": Family(qk_norm="head", unsaid={"head_dim": 128}),
    "gemma2": Family(
        norms=(*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        dims=("pp", "tp"),
        scores_kept=True,
        window_period=2,
        unsaid={
            "head_dim": 256,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            _POSITIONS: 8192,
        },
    ),
    "gemma3_text": Family(
        norms=(*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        qk_norm="head",
        window_period=6,
        unsaid={
            "head_dim": 256,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262_208,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            _POSITIONS: 131_072,
        },
    ),
    "phi3": Family(fused=True, dims=("pp", "cp"), window_period=1, unsaid={_POSITIONS: 4096}),
    "olmo2": Family(
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="whole",
        dims=("pp", "cp"),
        unsaid={_POSITIONS: 2048},
    ),
    "gpt2": Family(dims=("cp",), unsaid={"tie_word_embeddings": True, _POSITIONS: 1024}),
    "mixtral": Family(experts=True, window_period=1, unsaid={"num_key_value_heads": 8, _POSITIONS: 131_072}),
    "qwen3_moe": Family(qk_norm="head", experts=True, expert_width="moe_intermediate_size"),
    "gpt_oss": Family(
        experts=True,
        sinks=True,
        scores_kept=True,
        dims=("pp",),
        window_period=2,
        unsaid={
            "attention_bias": True,
            "sliding_window": 128,
            "head_dim": 64,
            "num_key_value_heads": 8,
            _POSITIONS: 131_072,
        },
    ),
}
"""By the `model_type` of a config.json. The parameters of other families are known only on the ranks."""


@dataclass(frozen=True)
class DecoderShape:
    """Shape of a decoder; stratlab_spec/models/decoder_json.py maps its fields to the names in a config.json."""

    family: str
    """`model_type`: a key of FAMILIES, or another decoder of transformers."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the dense feed-forward part; a mixture of experts ignores it."""
    vocab: int
    tied: bool
    """Whether the head shares the weight of the embedding."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    max_positions: int = 32768
    biased: tuple[str, ...] = ()
    """Projections with a bias."""
    windows: tuple[int, ...] = ()
    """Sliding window of each layer in tokens, including the current one; 0 = all tokens. Empty without windows."""
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Arguments of transformers' configuration: the content of config.json."""
    counted: tuple[int, int] | None = None
    """(all parameters, parameters that multiply a token), counted on the ranks for a family outside FAMILIES."""

    @property
    def queries(self) -> int:
        """Return the width of all heads together."""
        return self.heads * self.head_dim

    @property
    def dims(self) -> tuple[str, ...]:
        """Return the dimensions over which nd can split it, without the data dimensions."""
        return FAMILIES[self.family].dims if self.family in FAMILIES else ()


def parameter_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its name in the Decoder, without adapters.

    A tied head has no entry of its own. Experts are fused, as in transformers: gate_up_proj
    [expert, 2 * expert_intermediate, hidden] and down_proj [expert, hidden, expert_intermediate].

    Raises:
        ConfigError: the family is not in FAMILIES.
    """
    if shape.family not in FAMILIES:
        raise ConfigError(
            f"model_type {shape.family!r}: only the ranks can count its parameters; expected one of "
            f"{', '.join(FAMILIES)} [SL-decoder-uncounted]"
        )
    hidden = shape.hidden
    core, layers, norm = ("hf.model", "layers", {"norm.weight": (hidden,)})
    shapes: dict[str, tuple[int, ...]] = {}
    if shape.family == "gpt2":
        core, layers, norm = ("hf.transformer", "h", {"ln_f.weight": (hidden,), "ln_f.bias": (hidden,)})
        shapes = {
            f"{core}.wte.weight": (shape.vocab, hidden),
            f"{core}.wpe.weight": (shape.max_positions, hidden),
        }
    else:
        shapes[f"{core}.embed_tokens.weight"] = (shape.vocab, hidden)
    for i in range(shape.layers):
        for name, size in _layer_shapes(shape).items():
            shapes[f"{core}.{layers}.{i}.{name}"] = size
    shapes |= {f"{core}.{name}": size for name, size in norm.items()}
    if not shape.tied:
        shapes["hf.lm_head.weight"] = (shape.vocab, hidden)
    return shapes


def _layer_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    if shape.family == "gpt2":
        return _gpt2_layer_shapes(shape)
    hidden, kv, family = shape.hidden, shape.kv_heads * shape.head_dim, FAMILIES[shape.family]
    inner, wide = shape.intermediate, {"q_proj": shape.queries, "k_proj": kv, "v_proj": kv}
    sizes = {name: (width, hidden) for name, width in wide.items()}
    if family.fused:
        sizes = {"qkv_proj": (shape.queries + 2 * kv, hidden)}
    sizes = {f"self_attn.{name}": size for name, size in {**sizes, "o_proj": (hidden, shape.queries)}.items()}
    layer: dict[str, tuple[int, ...]] = {}
    if family.experts:
        layer |= _expert_shapes(shape, family.sinks)
    elif family.fused:
        sizes |= {"mlp.gate_up_proj": (2 * inner, hidden), "mlp.down_proj": (hidden, inner)}
    else:
        sizes |= {
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
    for name, size in sizes.items():
        layer[f"{name}.weight"] = size
        if name.partition(".")[2] in shape.biased:
            layer[f"{name}.bias"] = size[:1]
    if family.qk_norm:
        whole = family.qk_norm == "whole"
        layer["self_attn.q_norm.weight"] = (shape.queries if whole else shape.head_dim,)
        layer["self_attn.k_norm.weight"] = (kv if whole else shape.head_dim,)
    if family.sinks:
        layer["self_attn.sinks"] = (shape.heads,)
    return layer | {f"{name}.weight": (hidden,) for name in family.norms}


def _expert_shapes(shape: DecoderShape, biased: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes; `biased` selects the transposed matrices of gpt-oss."""
    hidden, experts, inner = shape.hidden, shape.experts, shape.expert_intermediate
    if not biased:
        return {
            "mlp.experts.gate_up_proj": (experts, 2 * inner, hidden),
            "mlp.experts.down_proj": (experts, hidden, inner),
            "mlp.gate.weight": (experts, hidden),
        }
    return {
        "mlp.router.weight": (experts, hidden),
        "mlp.router.bias": (experts,),
        "mlp.experts.gate_up_proj": (experts, hidden, 2 * inner),
        "mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
        "mlp.experts.down_proj": (experts, inner, hidden),
        "mlp.experts.down_proj_bias": (experts, hidden),
    }


def _gpt2_layer_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a GPT-2 layer; its matrices are [in, out]."""
    hidden, inner = shape.hidden, shape.intermediate
    layer: dict[str, tuple[int, ...]] = {}
    for name, size in (
        ("attn.c_attn", (hidden, 3 * hidden)),
        ("attn.c_proj", (hidden, hidden)),
        ("mlp.c_fc", (hidden, inner)),
        ("mlp.c_proj", (inner, hidden)),
    ):
        layer |= {f"{name}.weight": size, f"{name}.bias": size[1:]}
    for name in ("ln_1", "ln_2"):
        layer |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
    return layer


def count_parameters(shape: DecoderShape) -> int:
    """Return the number of all parameters; a tied head counts once, adapters do not count."""
    if shape.counted:
        return shape.counted[0]
    return sum(math.prod(size) for size in parameter_shapes(shape).values())


def count_layer_parameters(shape: DecoderShape) -> int:
    """Return the number of parameters of one decoder block, including all experts."""
    return sum(math.prod(size) for size in _layer_shapes(shape).values())


def count_matmul_parameters(shape: DecoderShape, active_only: bool = True) -> int:
    """Return the number of parameters that multiply a token.

    Norms, biases and the input embedding do not count. The head counts even if it is tied.

    Args:
        active_only: count only the experts that one token uses, and the router.
    """
    if shape.counted:
        return shape.counted[1]
    per_layer = 0
    for name, size in _layer_shapes(shape).items():
        if name.endswith("bias"):
            continue
        if len(size) == 3:
            chosen = shape.experts_per_token if active_only else shape.experts
            per_layer += chosen * math.prod(size[1:])
        elif len(size) == 2:
            per_layer += math.prod(size)
    return shape.layers * per_layer + shape.vocab * shape.hidden


def count_flops_per_token(shape: DecoderShape, seq_len: int, *, causal: bool, lora: bool = False) -> float:
    """Return the FLOPs of forward and backward per token: 6 N + 12 L H Q T (PaLM, arXiv 2204.02311, app. B).

    Args:
        seq_len: T; for packed documents of lengths s, the mean that a token sees: sum(s^2) / sum(s).
        causal: count half of the attention term, as a causal kernel computes it; False = the literature's convention.
        lora: count 4 N, because frozen weights need no gradients; the adapters do not count.
    """
    attention = sum(12.0 * shape.queries * _full_length(seq_len, window) for window in shape.windows)
    attention += 12.0 * (shape.layers - len(shape.windows)) * shape.queries * seq_len
    weights = (4.0 if lora else 6.0) * count_matmul_parameters(shape)
    return weights + (attention / 2 if causal else attention)


def _full_length(seq_len: int, window: int) -> float:
    """Return the length of a row without a window whose causal attention needs as many operations per token."""
    if not window or window >= seq_len:
        return seq_len
    return window * (2 - window / seq_len)


def count_forward_flops_per_token(shape: DecoderShape, seq_len: int, *, causal: bool) -> float:
    """Return the FLOPs of the forward pass: a third of `count_flops_per_token`."""
    return count_flops_per_token(shape, seq_len, causal=causal) / 3


def weight_shapes(shape: DecoderShape, config: Config) -> dict[str, tuple[int, ...]]:
    """Return `parameter_shapes` of the trained model: with LoRA, peft's names, and each adapter after its base."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, size in parameter_shapes(shape).items():
        module, _, kind = name.rpartition(".")
        if not config.lora_rank or not is_adapted(module, config):
            shapes[name] = size
            continue
        shapes[f"{module}.base_layer.{kind}"] = size
        if kind == "weight":
            shapes[f"{module}.lora_A.default.weight"] = (config.lora_rank, size[1])
            shapes[f"{module}.lora_B.default.weight"] = (size[0], config.lora_rank)
    return shapes


def is_adapted(module: str, config: Config) -> bool:
    """Return whether LoRA adapts this module: a linear layer in `lora_targets`, by default one of the attention."""
    if not module.endswith("_proj") or ".mlp.experts." in module:
        return False
    targets = [target for target in config.lora_targets.split(",") if target]
    if not targets:
        return ".self_attn." in module
    return any(f".{module}".endswith(f".{target}") for target in targets)


VIRTUAL_STAGES = {"1f1b": 1, "gpipe": 1, "interleaved1f1b": 2}
"""Schedule -> pipeline stages per process."""


def split_layers(layers: int, stages: int) -> list[range]:
    """Return the layers of each stage; the first stages get the extra layers, because the last one has the head."""
    base, extra = divmod(layers, stages)
    ends = [base * (stage + 1) + min(stage + 1, extra) for stage in range(stages)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
