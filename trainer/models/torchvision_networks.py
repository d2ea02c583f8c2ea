"""Published convolutional networks from torchvision: MobileNetV3-Large, EfficientNet-B0, VGG-16, ResNet-50.

Dropout and stochastic depth are off, so that runs are repeatable and comparable. All except VGG keep their batch norm;
trainer/models/batch_norm.py explains its effect with several processes. From scratch, ResNet's residual branches begin
at zero (Goyal et al., arXiv 1706.02677, 5.1). Otherwise its first gradients are 40 times as long, and one step enlarges
their rounding errors to some percent.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torchvision
from torch import Tensor, nn

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import ConfigError
from trainer.models.model_with_loss import (
    ImageClassifier,
    count_forward_flops,
    repeat_channel,
    wrong_channels,
)

PUBLISHED_CHANNELS = 3


@dataclass(frozen=True)
class Published:
    """The names that differ between torchvision's networks."""

    function: str
    first: str
    """Name of the first convolution."""
    head: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments that switch off randomness in training or set the initialisation."""


NETWORKS = {
    "mobilenet": Published("mobilenet_v3_large", "features.0.0", "classifier.3", {"dropout": 0.0}),
    "efficientnet": Published(
        "efficientnet_b0", "features.0.0", "classifier.1", {"dropout": 0.0, "stochastic_depth_prob": 0.0}
    ),
    "vgg": Published("vgg16", "features.0", "classifier.6", {"dropout": 0.0}),
    "resnet": Published("resnet50", "conv1", "fc", {"zero_init_residual": True}),
}


class TorchvisionNetwork(ImageClassifier):
    """Adapt one of NETWORKS to `ImageClassifier`; torchvision's names are below `inner.`.

    Args:
        repeat: repeat the images' single channel for the three channels of the weights.
    """

    core = "inner"

    def __init__(self, name: str, inner: nn.Module, image_size: int, channels: int, repeat: bool) -> None:
        super().__init__()
        self.inner = inner
        self.heads = [NETWORKS[name].head]
        self._name = name
        self._repeat = repeat
        self.set_flops(count_forward_flops(self, image_size, channels))

    def predict(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""
        return self.inner(repeat_channel(images, PUBLISHED_CHANNELS) if self._repeat else images)

    def blocks(self) -> list[nn.Module]:
        """Return residual blocks; for VGG the five stages between its poolings and the two large linear layers."""
        inner: Any = self.inner
        match self._name:
            case "resnet":
                return [*inner.layer1, *inner.layer2, *inner.layer3, *inner.layer4]
            case "efficientnet":
                return [block for stage in inner.features[1:-1] for block in stage]
            case "mobilenet":
                return list(inner.features[1:-1])
        return [*inner.features, inner.classifier[0], inner.classifier[3]]


def build_torchvision(
    name: str, image_size: int, channels: int, num_labels: int, weight_channels: int
) -> ImageClassifier:
    """Build the network with fresh weights.

    Args:
        weight_channels: of the weights to load; equal to `channels` for fresh weights.

    Raises:
        ConfigError: the images have neither one channel nor the three channels of the weights.
    """
    published = NETWORKS[name]
    inner = getattr(torchvision.models, published.function)(num_classes=num_labels, **published.settings)
    if weight_channels != PUBLISHED_CHANNELS:
        _replace_first(inner, published.first, weight_channels)
    if name == "vgg":
        inner.features = group_stages(inner.features)
    repeat = channels == 1 and weight_channels == PUBLISHED_CHANNELS
    if channels != weight_channels and not repeat:
        raise ConfigError(wrong_channels(name, weight_channels, channels))
    return TorchvisionNetwork(name, inner, image_size, channels, repeat)


def download_weights(name: str) -> dict[str, Tensor]:
    """Return torchvision's best published weights for ImageNet, from its cache (TORCH_HOME) or its server.

    Raises:
        DataMissing: neither has them.
    """
    weights = torchvision.models.get_model_weights(NETWORKS[name].function).DEFAULT
    try:
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except Exception as failure:  # network, disk and hash errors mean that the weights are not available
        raise DataMissing(
            f"TRAINER_INIT='pretrained', TRAINER_MODEL={name!r}: cannot load {weights.url} or its file in "
            f"TORCH_HOME: {failure} [SL-published-unloadable]"
        ) from failure
    return rename_stages(state) if name == "vgg" else state


def group_stages(features: nn.Sequential) -> nn.Sequential:
    """Group VGG's flat list of layers into five stages, each ending with a pooling.

    Recomputing a block of a single layer would not save memory.
    """
    stages: list[OrderedDict[str, nn.Module]] = [OrderedDict()]
    for name, layer in features.named_children():
        stages[-1][name] = layer
        if isinstance(layer, nn.MaxPool2d):
            stages.append(OrderedDict())
    return nn.Sequential(OrderedDict((f"stage{i}", nn.Sequential(s)) for i, s in enumerate(stages) if s))


POOLINGS = (4, 9, 16, 23, 30)


def rename_stages(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename VGG-16's published `features.N.` to `features.stageS.N.`."""

    def rename(match: re.Match[str]) -> str:
        stage = sum(int(match[1]) > pooling for pooling in POOLINGS)
        return f"features.stage{stage}.{match[1]}."

    return {re.sub(r"^features\.(\d+)\.", rename, name): tensor for name, tensor in state.items()}


def _replace_first(inner: nn.Module, name: str, channels: int) -> None:
    """Replace the first convolution for another number of channels, initialised like torchvision's."""
    parent, _, child = name.rpartition(".")
    old = inner.get_submodule(name)
    assert isinstance(old, nn.Conv2d)
    new = nn.Conv2d(
        channels, old.out_channels, old.kernel_size, old.stride, old.padding, bias=old.bias is not None
    )
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    if new.bias is not None:
        nn.init.zeros_(new.bias)
    setattr(inner.get_submodule(parent), child, new)
