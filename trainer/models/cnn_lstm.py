"""A convolutional network per frame and an LSTM over the frames (Donahue et al., arXiv 1411.4389)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stratlab_spec.settings.config import Config
from trainer.models.cnn import WIDTHS, build_stages, stage_flops
from trainer.models.model_with_loss import ForwardFlops, ImageClassifier

# three halvings, with windows of half the width of an image
NETWORK = {"image": 32, "step": 16, "smallest": 16, "what": "a CNN per frame, then an LSTM"}
FRAMES = 5
HIDDEN = 128


class ConvLstm(ImageClassifier):
    """The stages of `cnn` on every frame, the mean over the frame, an LSTM over the frames, a linear head.

    A still image becomes FRAMES frames. A window of the image's full height and half its width moves from the left edge
    to the right in equal steps. Real sequences may have any length and size.
    """

    def __init__(self, image_size: int, channels: int, num_labels: int) -> None:
        super().__init__()
        self.stages = build_stages(channels)
        self.lstm = Lstm(WIDTHS[-1], HIDDEN)
        self.head = nn.Linear(HIDDEN, num_labels)
        self.heads = ["head"]
        frame = stage_flops(channels, image_size, image_size // 2) + self.lstm.frame_flops
        self.set_flops(ForwardFlops(FRAMES * frame))

    def predict(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width], or frames [batch, frame, channel, height, width] -> logits."""
        frames = pan(images) if images.dim() == 4 else images
        features = self.stages(frames.flatten(0, 1)).mean(dim=(2, 3))
        return self.head(self.lstm(features.unflatten(0, frames.shape[:2])))

    def blocks(self) -> list[nn.Module]:
        return [*self.stages, self.lstm]


class Lstm(nn.Module):
    """`nn.LSTM` of one layer (same gates, same order), written with two linear layers.

    cuDNN's LSTM needs its weights in one block of memory. Strategies that shard or flatten weights split that block.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        self.frame_flops = 2.0 * 4 * hidden * (inputs + hidden)

    def forward(self, sequence: Tensor) -> Tensor:
        """Features [batch, frame, input] -> hidden state after the last frame [batch, hidden]."""
        gates = self.from_input(sequence)
        hidden = gates.new_zeros(len(sequence), self.from_hidden.in_features)
        cell = torch.zeros_like(hidden)
        for frame in gates.unbind(dim=1):
            enter, forget, candidate, leave = (frame + self.from_hidden(hidden)).chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            hidden = leave.sigmoid() * cell.tanh()
        return hidden


def pan(images: Tensor) -> Tensor:
    """Images [batch, channel, height, width] -> windows [batch, FRAMES, channel, height, width / 2]."""
    width = images.shape[-1]
    windows = images.unfold(3, width // 2, width // (2 * (FRAMES - 1)))
    return windows.permute(0, 3, 1, 2, 4)


def build(config: Config, image_size: int, channels: int, num_labels: int) -> ConvLstm:
    """Build the network with weights from torch's random generator."""
    return ConvLstm(image_size, channels, num_labels)
