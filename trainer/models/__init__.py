"""A registry by name. A model is an `nn.Module` that maps images to logits and knows its own costs."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from trainer.config import Config
from trainer.model_shapes import VIT


class Classifier(Protocol):
    """What the engines and the metrics ask of a model."""

    flops_per_sample: float
    """Floating-point operations of forward and backward for one image (PaLM convention: no recomputation)."""

    def __call__(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""

    def blocks(self) -> list[nn.Module]:
        """The repeated parts, in order: what sharding strategies gather one at a time."""


def build_model(
    config: Config, *, image_size: int, channels: int, num_labels: int, empty: bool = False
) -> nn.Module:
    """The model on the CPU in fp32; initial weights depend on the seed alone.

    Args:
        empty: on the meta device instead, without weights.

    Raises:
        DataMissing: pretrained weights that are not to be had.
    """
    with torch.device("meta" if empty else "cpu"):
        torch.manual_seed(config.seed)
        return _build(config, image_size, channels, num_labels)


def _build(config: Config, image_size: int, channels: int, num_labels: int) -> nn.Module:
    if config.model in VIT:
        from trainer.models.vit import VisionTransformer

        return VisionTransformer(VIT[config.model], image_size, channels, num_labels)
    from trainer.models.cnn import ConvNet

    return ConvNet(image_size, channels, num_labels)
