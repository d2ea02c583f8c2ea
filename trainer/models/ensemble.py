"""An ensemble of networks that averages their logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stratlab_spec.settings.config import Config
from trainer.models.cnn import ConvNet
from trainer.models.model_with_loss import ForwardFlops, ImageClassifier

NETWORK = {"image": 32, "step": 8, "smallest": 8, "what": "three small CNNs whose logits are averaged"}
MEMBERS = 3


def member_seeds(seed: int) -> list[int]:
    """Return a distinct seed for every member of every run."""
    return [seed * MEMBERS + i for i in range(MEMBERS)]


class Ensemble(ImageClassifier):
    """The mean of the members' logits. The members train together, on the loss of that mean."""

    def __init__(self, members: Sequence[ImageClassifier]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.heads = [f"members.{i}.{head}" for i, member in enumerate(members) for head in member.heads]
        costs = [member.forward_flops for member in members]
        self.set_flops(ForwardFlops(*(sum(parts) for parts in zip(*costs, strict=True))))

    def predict(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""
        return torch.stack([member(images) for member in self.members]).mean(dim=0)

    def blocks(self) -> list[nn.Module]:
        return [block for member in self.members for block in member.blocks()]


def build(config: Config, image_size: int, channels: int, num_labels: int) -> Ensemble:
    """Build the members, each from its own seed."""
    members = []
    for seed in member_seeds(config.seed):
        torch.manual_seed(seed)
        members.append(ConvNet(image_size, channels, num_labels))
    return Ensemble(members)
