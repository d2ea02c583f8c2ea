"""Tiny checkpoints of every family in Hugging Face's format, the same for the reference and for every rank.

Two layers unless the name says more: what lies between layers is there, and a step costs the host half as much as with
four. Weights are drawn larger than the usual initialisation and biases are not zero, so that no gradient is lost in
rounding; that every mesh starts from files also proves that each rank reads its own part of them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from stratlab_spec.models.decoder import FAMILIES

VOCAB = 128
DENSE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
EXPERTS: dict[str, Any] = DENSE | {
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
# name -> (family, shape); the teacher has its students' vocabulary and nothing else.
# The others: qwen_tiny and qwen_moe_tiny with a smaller vocabulary, and what they leave untried.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("qwen2", DENSE | {"tie_word_embeddings": True}),
    "untied": ("qwen2", DENSE | {"tie_word_embeddings": False}),
    "4 layers": ("qwen2", DENSE | {"tie_word_embeddings": True, "num_hidden_layers": 4}),
    "8 layers": ("qwen2", DENSE | {"tie_word_embeddings": True, "num_hidden_layers": 8}),
    "teacher": (
        "qwen2",
        DENSE
        | {"tie_word_embeddings": False, "hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 1},
    ),
    "moe": ("qwen3_moe", EXPERTS | {"tie_word_embeddings": False}),
    "moe tied": ("qwen3_moe", EXPERTS | {"tie_word_embeddings": True}),
    "moe 4 kv": (
        "qwen3_moe",
        EXPERTS | {"tie_word_embeddings": False, "num_attention_heads": 8, "num_key_value_heads": 4},
    ),
}
OTHER_FAMILIES = tuple(family for family in FAMILIES if family not in {of for of, _ in MODELS.values()})
"""Whose one model here is called like them."""
MODELS |= {
    family: (family, (EXPERTS if FAMILIES[family].experts else DENSE) | {"tie_word_embeddings": False})
    for family in OTHER_FAMILIES
}


def write_models(folder: Path, names: Collection[str] = tuple(MODELS)) -> None:
    """One checkpoint folder per name."""
    import torch
    import transformers

    for name in names:
        family, shape = MODELS[name]
        row = FAMILIES[family]
        configuration = getattr(transformers, row.configuration)(**shape, pad_token_id=None, **row.off)
        model = getattr(transformers, row.model)(configuration)
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=draw)
                if parameter.ndim > 1:
                    parameter.copy_(0.08 * noise)
                else:
                    parameter.copy_(("norm" in key) + 0.1 * noise)
        model.save_pretrained(folder / name)
