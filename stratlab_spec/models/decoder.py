"""What is known of a language model without torch: families, published shapes, parameters, operations per token.

A preset may be given other sizes (`resize_decoder`), which must keep rules. `split_layers` says how a pipeline cuts the
layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from stratlab_spec.registry import DECODER_SIZES, VIT_SIZES, given_sizes
from stratlab_spec.settings.config import Config

if TYPE_CHECKING:
    from stratlab_spec.settings.fields import Settings


@dataclass(frozen=True, kw_only=True)
class Family:
    """What decoders of one kind have in common, as transformers builds them."""

    configuration: str
    """transformers' class of its configuration."""
    model: str
    """transformers' class of the model with its head."""
    off: Mapping[str, Any]
    """Arguments of the configuration that leave out what is not built here: the model is built with these values, and a
    config.json that says another one is refused. Those of all families: `describe` in trainer/models/decoder.py."""
    qkv_bias: bool = False
    """Biases on q, k and v."""
    qk_norm: bool = False
    """Norms on q and k."""
    experts: bool = False
    """In every layer."""
    inert: tuple[str, ...] = ()
    """Further arguments of the configuration that change nothing of what is built here, whatever a config.json says:
    words of a tokenizer, initial weights, what `off` leaves without effect (tests/trainer/models/test_decoder.py tries
    another value of each)."""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes where a config.json tells nothing, if decoder_config.py takes something else."""


FAMILIES = {
    "qwen2": Family(
        configuration="Qwen2Config",
        model="Qwen2ForCausalLM",
        off={"use_sliding_window": False, "sliding_window": None},
        qkv_bias=True,
        inert=("max_window_layers",),
    ),
    "qwen3_moe": Family(
        configuration="Qwen3MoeConfig",
        model="Qwen3MoeForCausalLM",
        off={"use_sliding_window": False, "sliding_window": None, "output_router_logits": False},
        qk_norm=True,
        experts=True,
        inert=("router_aux_loss_coef",),
    ),
}
"""By `model_type` of a config.json."""


@dataclass(frozen=True)
class DecoderShape:
    """Shape of a decoder; its names in a config.json are in stratlab_spec/models/decoder_config.py."""

    family: str
    """One of FAMILIES."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the dense feed-forward part; without effect where there are experts."""
    vocab: int
    tied: bool
    """The head is the embedding."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6
    max_positions: int = 32768
    norm_top_k: bool = True
    """The weights of a token's chosen experts are scaled to the sum 1."""

    @property
    def queries(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim


def _qwen2(layers: int, hidden: int, heads: int, intermediate: int) -> DecoderShape:
    """Qwen2.5 up to 3B (config.json of Qwen/Qwen2.5-*): 2 kv heads, vocabulary 151,936, tied."""
    return DecoderShape("qwen2", layers, hidden, heads, 2, hidden // heads, intermediate, 151936, True)


_TINY: dict[str, Any] = {
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "intermediate": 128,
    "vocab": 320,
    "rope_theta": 10_000.0,
    "max_positions": 4096,
}
SHAPES: dict[str, DecoderShape] = {
    "qwen2.5-0.5b": _qwen2(24, 896, 14, 4864),
    "qwen2.5-1.5b": _qwen2(28, 1536, 12, 8960),
    "qwen2.5-3b": _qwen2(36, 2048, 16, 11008),
    "qwen3-30b-a3b": DecoderShape(
        "qwen3_moe",
        layers=48,
        hidden=2048,
        heads=32,
        kv_heads=4,
        head_dim=128,
        intermediate=6144,
        vocab=151936,
        tied=False,
        experts=128,
        experts_per_token=8,
        expert_intermediate=768,
        max_positions=40960,
    ),
    "qwen_tiny": DecoderShape("qwen2", tied=True, **_TINY),
    "qwen_moe_tiny": DecoderShape(
        "qwen3_moe", tied=False, experts=8, experts_per_token=2, expert_intermediate=32, **_TINY
    ),
}
TEXT_HUB_IDS = {
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
}
"""Whose published weights init=pretrained loads."""


def hub_id(config: Config) -> str:
    """The hub id whose configuration or weights this run needs; "" = none."""
    if config.model_path:
        return ""
    if config.model in SHAPES:
        return TEXT_HUB_IDS.get(config.model, "") if config.init == "pretrained" else ""
    return config.model


def parameter_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its name inside the Decoder, in the order of the module; no adapters.

    A tied head has no entry of its own. Experts are fused, as transformers holds them: gate_up_proj
    [expert, 2 * expert_intermediate, hidden] and down_proj [expert, hidden, expert_intermediate].
    """
    hidden = shape.hidden
    shapes: dict[str, tuple[int, ...]] = {"hf.model.embed_tokens.weight": (shape.vocab, hidden)}
    for i in range(shape.layers):
        for name, size in _layer_shapes(shape).items():
            shapes[f"hf.model.layers.{i}.{name}"] = size
    shapes["hf.model.norm.weight"] = (hidden,)
    if not shape.tied:
        shapes["hf.lm_head.weight"] = (shape.vocab, hidden)
    return shapes


def _layer_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    hidden, kv, family = shape.hidden, shape.kv_heads * shape.head_dim, FAMILIES[shape.family]
    layer: dict[str, tuple[int, ...]] = {}
    for name, width in (("q_proj", shape.queries), ("k_proj", kv), ("v_proj", kv)):
        layer[f"self_attn.{name}.weight"] = (width, hidden)
        if family.qkv_bias:
            layer[f"self_attn.{name}.bias"] = (width,)
    layer["self_attn.o_proj.weight"] = (hidden, shape.queries)
    if family.qk_norm:
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (shape.head_dim,)
    if shape.experts:
        layer["mlp.experts.gate_up_proj"] = (shape.experts, 2 * shape.expert_intermediate, hidden)
        layer["mlp.experts.down_proj"] = (shape.experts, hidden, shape.expert_intermediate)
        layer["mlp.gate.weight"] = (shape.experts, hidden)
    else:
        layer["mlp.gate_proj.weight"] = layer["mlp.up_proj.weight"] = (shape.intermediate, hidden)
        layer["mlp.down_proj.weight"] = (hidden, shape.intermediate)
    layer["input_layernorm.weight"] = layer["post_attention_layernorm.weight"] = (hidden,)
    return layer


def count_parameters(shape: DecoderShape) -> int:
    """All parameters; a tied head counts once, adapters are left out."""
    return sum(math.prod(size) for size in parameter_shapes(shape).values())


def count_layer_parameters(shape: DecoderShape) -> int:
    """Of one decoder block, all experts included."""
    return sum(math.prod(size) for size in _layer_shapes(shape).values())


def count_matmul_parameters(shape: DecoderShape, active_only: bool = True) -> int:
    """Parameters that multiply a token: no norms, biases or input embedding; the head also where it is tied.

    Args:
        active_only: of the experts those that one token uses, and the router.
    """
    per_layer = 0
    for size in _layer_shapes(shape).values():
        if len(size) == 3:
            chosen = shape.experts_per_token if active_only else shape.experts
            per_layer += chosen * math.prod(size[1:])
        elif len(size) == 2:
            per_layer += math.prod(size)
    return shape.layers * per_layer + shape.vocab * shape.hidden


def count_flops_per_token(shape: DecoderShape, seq_len: int, *, causal: bool, lora: bool = False) -> float:
    """Floating-point operations of forward and backward per token: 6 N + 12 L H Q T (PaLM, arXiv 2204.02311, app. B).

    Args:
        seq_len: T; for packed documents of lengths s the mean a token sees, sum(s^2) / sum(s).
        causal: half of the attention term, which is what a causal kernel does; False = the literature's convention.
        lora: 4 N, for frozen weights need no gradients of their own; the adapters' share is left out.
    """
    attention = 12.0 * shape.layers * shape.queries * seq_len
    weights = (4.0 if lora else 6.0) * count_matmul_parameters(shape)
    return weights + (attention / 2 if causal else attention)


def count_forward_flops_per_token(shape: DecoderShape, seq_len: int, *, causal: bool) -> float:
    """The forward pass alone: a third of `count_flops_per_token`."""
    return count_flops_per_token(shape, seq_len, causal=causal) / 3


def weight_shapes(shape: DecoderShape, config: Config) -> dict[str, tuple[int, ...]]:
    """`parameter_shapes` of the model as it is trained: with LoRA peft's names, the adapters beside their bases."""
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
    """Whether LoRA gives this module adapters: a linear layer that is named, or without names the attention's."""
    if not module.endswith("_proj") or ".mlp.experts." in module:
        return False
    targets = [target for target in config.lora_targets.split(",") if target]
    if not targets:
        return ".self_attn." in module
    return any(f".{module}".endswith(f".{target}") for target in targets)


Vit = TypeVar("Vit", bound=Any)
"""Of stratlab_spec/models/model_specs.py, which reads this."""


def resize_vit(preset: Vit, config: Settings) -> Vit:
    """The preset with the given sizes; whether they fit each other is not looked at."""
    return dataclasses.replace(preset, **given_sizes(config, VIT_SIZES))


def resize_decoder(preset: DecoderShape, config: Settings) -> DecoderShape:
    """The same of a decoder. A head is hidden / heads wide where the preset's is; of a mixture of experts the
    intermediate size is that of each expert."""
    given: dict[str, Any] = dict(given_sizes(config, DECODER_SIZES))
    if not given:
        return preset
    if preset.experts and "intermediate" in given:
        given["expert_intermediate"] = given.pop("intermediate")
    sized = dataclasses.replace(preset, **given)
    if splits_hidden(preset):
        sized = dataclasses.replace(sized, head_dim=max(1, sized.hidden // sized.heads))
    return sized


def splits_hidden(preset: DecoderShape) -> bool:
    """Whether its heads share the hidden size."""
    return preset.queries == preset.hidden


def vit_size_problems(hidden: int, heads: int, config: Settings) -> Iterator[str]:
    """One sentence per rule that the sizes of a vision transformer break."""
    if given_sizes(config, VIT_SIZES):
        yield from _hidden_problems(hidden, heads, even=False)


def decoder_size_problems(preset: DecoderShape, config: Settings) -> Iterator[str]:
    """One sentence per rule that the sizes of a decoder break."""
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
    """`even`: rotary positions turn pairs of numbers of each head."""
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


VIRTUAL_STAGES = {"1f1b": 1, "gpipe": 1, "interleaved1f1b": 2}
"""Schedule -> stages of the pipeline that one process holds."""


def split_layers(layers: int, stages: int) -> list[range]:
    """The layers of each stage; the first ones get those that are left over, because the last one has the head."""
    base, extra = divmod(layers, stages)
    ends = [base * (stage + 1) + min(stage + 1, extra) for stage in range(stages)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
