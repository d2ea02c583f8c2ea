"""A small convolutional network: three halvings, group norm (batch norm would differ with the batch per rank)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

WIDTHS = (32, 64, 128)


class ConvNet(nn.Module):
    """Convolution, group norm, ReLU and pooling, three times; then the mean over the image and a linear head."""

    def __init__(self, image_size: int, channels: int, num_labels: int) -> None:
        super().__init__()
        sizes = (channels, *WIDTHS)
        self.stages = nn.Sequential(
            OrderedDict((f"stage{i}", _stage(sizes[i], sizes[i + 1])) for i in range(len(WIDTHS)))
        )
        self.head = nn.Linear(WIDTHS[-1], num_labels)
        forward, edge = 0.0, image_size
        for before, after in zip(sizes, WIDTHS, strict=False):
            forward += 2 * 9 * before * after * edge**2
            edge //= 2
        self.flops_per_sample = 3.0 * forward

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""
        return self.head(self.stages(images).mean(dim=(2, 3)))

    def blocks(self) -> list[nn.Module]:
        return list(self.stages)


def _stage(before: int, after: int) -> nn.Module:
    convolution = nn.Conv2d(before, after, kernel_size=3, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2))
