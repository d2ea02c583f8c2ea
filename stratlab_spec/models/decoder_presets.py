"""List published decoders by name, as their config.json on the hub describes them, and small ones for tests.

`SHAPES` holds their shapes. Entries that equal transformers' defaults are omitted. `hub_id` names the model on the hub
that a run needs.
"""

from __future__ import annotations

from typing import Any

from stratlab_spec.models.decoder import DecoderShape
from stratlab_spec.models.decoder_json import shape_of_json
from stratlab_spec.settings.config import Config


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
