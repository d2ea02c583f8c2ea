"""From sample indices to this rank's micro-batches on its device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.images import Images
from trainer.data.order import SampleOrder


@dataclass(frozen=True)
class Batch:
    """This rank's share of one optimizer step."""

    micro: list[tuple[Tensor, Tensor]]
    """(images float [micro_batch_size, channel, height, width], labels int64 [micro_batch_size]) each."""
    global_samples: int
    """Samples of the step over all ranks: what the loss is divided by."""


@dataclass(frozen=True)
class Share:
    """Which part of a global batch is this rank's: `rank` of `ranks` that see different samples."""

    rank: int
    ranks: int


def build_batch(
    images: Images,
    order: SampleOrder,
    step: int,
    global_size: int,
    micro_size: int,
    share: Share,
    device: str,
) -> Batch:
    """The micro-batches of `step` (from 1) for one rank: a contiguous share of the global batch."""
    indices = order.batch(step, global_size)
    local = global_size // share.ranks
    mine = indices[share.rank * local : (share.rank + 1) * local]
    micro = [_tensors(images, mine[i : i + micro_size], device) for i in range(0, local, micro_size)]
    return Batch(micro, global_size)


def evaluation_batches(
    images: Images, micro_size: int, share: Share, device: str
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(images, labels, weights) with the same number of batches on every rank; padding has weight 0.

    Sharded strategies gather parameters in every forward pass, so no rank may have a batch more than another.
    """
    per_round = micro_size * share.ranks
    for start in range(0, len(images), per_round):
        wanted = np.arange(start + share.rank * micro_size, start + (share.rank + 1) * micro_size)
        weights = torch.from_numpy((wanted < len(images)).astype(np.float32)).to(device)
        yield *_tensors(images, np.minimum(wanted, len(images) - 1), device), weights


def _tensors(images: Images, indices: NDArray[np.int64], device: str) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(images.pixels(indices)).to(device, non_blocking=True)
    labels = torch.from_numpy(images.labels[indices]).to(device, non_blocking=True)
    return pixels.to(torch.float32).div_(127.5).sub_(1.0), labels
