"""Weights in the format of those that are published, small and drawn at random: configuration, safetensors, and what
belongs beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EDGE = 32
"""Pixels that the small vision transformers take; the published ones take 224."""
DECODER: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
"""Of the small language models; the words are bytes and three marks."""


def write_vit(folder: Path) -> None:
    """As google/vit-base-patch16-224: a classifier of 1000 classes."""
    _write_vit(folder, hidden=64, layers=4, classes=1000)


def write_vit_huge(folder: Path) -> None:
    """As google/vit-huge-patch14-224-in21k: the body alone, without the head of a classifier."""
    _write_vit(folder, hidden=192, layers=4, classes=0)


def write_mobilenet(folder: Path) -> None:
    """A TORCH_HOME with MobileNetV3-Large as torchvision saves it, 1000 classes: the one that cannot be smaller."""
    import torch
    import torchvision

    from stratlab_spec.registry import PUBLISHED_FILES

    torch.manual_seed(0)
    place = folder / "hub" / "checkpoints"
    place.mkdir(parents=True)
    torch.save(torchvision.models.mobilenet_v3_large().state_dict(), place / PUBLISHED_FILES["mobilenet"])


def write_qwen(folder: Path) -> None:
    """As Qwen/Qwen2.5-3B-Instruct: a tied decoder of the family qwen2 with its tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    _write_decoder(folder, Qwen2ForCausalLM, Qwen2Config(**DECODER, tie_word_embeddings=True))


def write_small_qwen(folder: Path) -> None:
    """As Qwen/Qwen2.5-0.5B-Instruct: the same family and words with fewer layers, narrower."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    smaller = {**DECODER, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
    _write_decoder(folder, Qwen2ForCausalLM, Qwen2Config(**smaller, tie_word_embeddings=True))


def write_qwen_moe(folder: Path) -> None:
    """As Qwen/Qwen3-30B-A3B: a decoder of the family qwen3_moe with experts in every layer, with its tokenizer."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
    config = Qwen3MoeConfig(**DECODER, **experts, norm_topk_prob=True, tie_word_embeddings=False)
    _write_decoder(folder, Qwen3MoeForCausalLM, config)


def _write_decoder(folder: Path, kind: Any, config: Any) -> None:
    import torch

    from trainer.data.text.tokenizer import build_byte_tokenizer

    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    build_byte_tokenizer().save_pretrained(folder)


def _write_vit(folder: Path, hidden: int, layers: int, classes: int) -> None:
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=EDGE, patch_size=8, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=4 * hidden, num_labels=classes or 2,
    )  # fmt: skip
    model = ViTForImageClassification(config) if classes else ViTModel(config)
    model.save_pretrained(folder)
    seen = {
        "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "image_processor_type": "ViTImageProcessor", "resample": 2,
        "rescale_factor": 1 / 255, "size": {"height": EDGE, "width": EDGE},
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(seen, indent=2) + "\n")
