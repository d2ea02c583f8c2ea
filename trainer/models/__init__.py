"""A registry by name. A model is an `nn.Module` that maps images to logits and knows its own costs."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from trainer.model_shapes import VIT


class Classifier(Protocol):
    """What the engines and the metrics ask of a model."""

    flops_per_sample: float
    """Floating-point operations of forward and backward for one image (PaLM convention: no recomputation)."""

    def __call__(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""

    def blocks(self) -> list[nn.Module]:
        """The repeated parts, in order: what sharding strategies gather one at a time."""


def build_model(name: str, *, image_size: int, channels: int, num_labels: int, seed: int) -> nn.Module:
    """The model with initial weights that depend on the seed alone, on the CPU, in fp32."""
    torch.manual_seed(seed)
    if name in VIT:
        from trainer.models.vit import VisionTransformer

        return VisionTransformer(VIT[name], image_size, channels, num_labels)
    from trainer.models.cnn import ConvNet

    return ConvNet(image_size, channels, num_labels)
