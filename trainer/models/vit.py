"""Vision transformers from a shape instead of a download: Hugging Face's implementation."""

from __future__ import annotations

from transformers import ViTConfig

from trainer.models.classifier import ForwardFlops
from trainer.shapes.model_shapes import VitShape


def vit_config(shape: VitShape, image_size: int, channels: int, num_labels: int) -> ViTConfig:
    """ViT with a linear head on the class token, without dropout."""
    return ViTConfig(  # type: ignore[call-arg]
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.mlp,
        patch_size=shape.patch,
        image_size=image_size,
        num_channels=channels,
        num_labels=num_labels,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def forward_flops(shape: VitShape, image_size: int, channels: int) -> ForwardFlops:
    """2 T L (4 D^2 + 2 D F) + 2 n D C p^2 and 4 T^2 D L for T = n + 1 tokens of n patches; head left out."""
    patches = (image_size // shape.patch) ** 2
    tokens, width = patches + 1, shape.hidden
    linear = 2 * tokens * shape.layers * (4 * width**2 + 2 * width * shape.mlp)
    embedding = 2 * patches * width * channels * shape.patch**2
    return ForwardFlops(linear + embedding, 4 * tokens**2 * width * shape.layers)
