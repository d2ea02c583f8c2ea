"""Hugging Face's vision transformer, built from a shape instead of downloaded."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from trainer.model_shapes import VitShape


class VisionTransformer(nn.Module):
    """ViT with a linear head on the class token."""

    def __init__(self, shape: VitShape, image_size: int, channels: int, num_labels: int) -> None:
        super().__init__()
        self.hf = ViTForImageClassification(
            ViTConfig(  # type: ignore[call-arg]
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
        )
        self.flops_per_sample = training_flops(shape, image_size, channels)

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""
        return self.hf(pixel_values=images).logits

    def blocks(self) -> list[nn.Module]:
        return list(self.hf.vit.layers)


def training_flops(shape: VitShape, image_size: int, channels: int) -> float:
    """3 x [2 T L (4 D^2 + 2 D F) + 4 T^2 D L + 2 n D C p^2] for T = n + 1 tokens of n patches; head left out."""
    patches = (image_size // shape.patch) ** 2
    tokens, width = patches + 1, shape.hidden
    linear = 2 * tokens * shape.layers * (4 * width**2 + 2 * width * shape.mlp)
    attention = 4 * tokens**2 * width * shape.layers
    embedding = 2 * patches * width * channels * shape.patch**2
    return 3.0 * (linear + attention + embedding)
