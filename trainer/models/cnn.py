"""A small convolutional network that halves the image three times.

It uses group norm, because batch norm would differ with the batch per rank.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from stratlab_spec.settings.config import Config
from trainer.models.model_with_loss import ForwardFlops, ImageClassifier

NETWORK = {"image": 32, "step": 8, "smallest": 8, "what": "a small CNN"}  # three halvings
WIDTHS = (32, 64, 128)


class ConvNet(ImageClassifier):
    """Three times convolution, group norm, ReLU and pooling; then the mean over the image and a linear head."""

    def __init__(self, image_size: int, channels: int, num_labels: int) -> None:
        super().__init__()
        self.stages = build_stages(channels)
        self.head = nn.Linear(WIDTHS[-1], num_labels)
        self.heads = ["head"]
        self.set_flops(ForwardFlops(stage_flops(channels, image_size, image_size)))

    def predict(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""
        return self.head(self.stages(images).mean(dim=(2, 3)))

    def blocks(self) -> list[nn.Module]:
        return list(self.stages)


def build_stages(channels: int) -> nn.Sequential:
    """Images [batch, channel, height, width] -> features [batch, WIDTHS[-1], height / 8, width / 8]."""
    sizes = (channels, *WIDTHS)
    return nn.Sequential(
        OrderedDict((f"stage{i}", _stage(sizes[i], sizes[i + 1])) for i in range(len(WIDTHS)))
    )


def stage_flops(channels: int, height: int, width: int) -> float:
    """Return 2 * 9 * (channels in) * (channels out) * pixels, summed over the three convolutions."""
    total, before = 0.0, channels
    for after in WIDTHS:
        total += 2 * 9 * before * after * height * width
        before, height, width = after, height // 2, width // 2
    return total


def _stage(before: int, after: int) -> nn.Module:
    convolution = nn.Conv2d(before, after, kernel_size=3, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2))


def build(config: Config, image_size: int, channels: int, num_labels: int) -> ConvNet:
    """Build the network with weights from torch's random generator."""
    return ConvNet(image_size, channels, num_labels)
