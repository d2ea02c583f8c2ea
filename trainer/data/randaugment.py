"""RandAugment (Cubuk et al. 2019, arXiv 1909.13719) on whole batches: 2 of 14 operations per sample, magnitude 9 of 30.

Which sample gets which operation is known on the host, so each operation runs on its samples only and nothing waits.
Unlike in the paper the geometric operations of a sample come first, because they are part of one affine sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.residence import to_device

ROUNDS = 2
COLUMNS = 2 * ROUNDS  # per round: which operation, and its sign
STRENGTH = 9 / 30

# Largest values as in the paper's code; the magnitude takes 9/30 of them.
SHEAR = 0.3 * STRENGTH
SHIFT = 2 * 150 / 331 * STRENGTH  # in coordinates from -1 to 1
TURN = np.deg2rad(30) * STRENGTH
BLEND = 0.9 * STRENGTH
SOLARIZE_FROM = 255 * (1 - STRENGTH)
POSTERIZE_STEP = 2.0  # 7 of 8 bits are left

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
COLOURS = (
    "brightness",
    "colour",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
OPERATIONS = ("identity", *GEOMETRIC, *COLOURS)


def _chosen(numbers: NDArray[np.float64], turn: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(operation, sign) of each sample in this round."""
    operation = (numbers[:, 2 * turn] * len(OPERATIONS)).astype(np.int64)
    return operation, np.where(numbers[:, 2 * turn + 1] < 0.5, -1.0, 1.0)


def geometry(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matrices [m, 3, 3] of the geometric operations of all rounds, on coordinates from -1 to 1."""
    whole = np.tile(np.eye(3), (len(numbers), 1, 1))
    for turn in range(ROUNDS):
        operation, sign = _chosen(numbers, turn)
        part = np.tile(np.eye(3), (len(numbers), 1, 1))
        for name, row, column, amount in (
            ("shear_x", 0, 1, SHEAR),
            ("shear_y", 1, 0, SHEAR),
            ("translate_x", 0, 2, SHIFT),
            ("translate_y", 1, 2, SHIFT),
        ):
            part[:, row, column] = np.where(operation == OPERATIONS.index(name), sign * amount, 0)
        angle = np.where(operation == OPERATIONS.index("rotate"), sign * TURN, 0)
        part[:, 0, 0] = part[:, 1, 1] = np.cos(angle)
        part[:, 0, 1] -= np.sin(angle)
        part[:, 1, 0] += np.sin(angle)
        whole = whole @ part
    return whole


def apply_colours(images: Tensor, numbers: NDArray[np.float64]) -> Tensor:
    """The other operations, on images from 0 to 255, in place. Pixels are whole numbers between the operations.

    Whole numbers make every sum over an image exact, so that it cannot depend on the order of adding.
    """
    images.round_()
    for turn in range(ROUNDS):
        operation, sign = _chosen(numbers, turn)
        for name in COLOURS:
            rows = np.flatnonzero(operation == OPERATIONS.index(name))
            if len(rows) == 0:
                continue
            where = to_device(rows, images.device)
            factor = to_device((1 + sign[rows] * BLEND).astype(np.float32), images.device).view(-1, 1, 1, 1)
            images[where] = _APPLY[name](images[where], factor).round_().clamp_(0, 255)
    return images


def _blend(images: Tensor, towards: Tensor, factor: Tensor) -> Tensor:
    return towards + (images - towards) * factor


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).round_().unsqueeze(1)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    mean = _grey(images).mean(dim=(1, 2, 3), keepdim=True, dtype=torch.float64)
    return _blend(images, mean.round().float(), factor)


def _sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Towards a 3x3 smoothing with weight 5 in the middle, as in PIL; the rim stays."""
    smooth = images.clone()
    height, width = images.shape[-2:]
    inner = 4 * images[..., 1:-1, 1:-1]
    for down in range(3):
        for across in range(3):
            inner = inner + images[..., down : height - 2 + down, across : width - 2 + across]
    smooth[..., 1:-1, 1:-1] = (inner / 13).round_()
    return _blend(images, smooth, factor)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    spread = high - low
    return torch.where(spread > 0, (images - low) * (255 / spread.clamp(min=1)), images)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Every grey value equally often, per sample and channel: PIL's table of the cumulated histogram."""
    count, channels, height, width = images.shape
    values = images.long().view(count * channels, height * width)
    histogram = values.new_zeros(count * channels, 256)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    last = values.amax(dim=1, keepdim=True)
    step = (height * width - histogram.gather(1, last)) // 255
    table = ((histogram.cumsum(1) - histogram + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    equal = torch.where(step > 0, table.gather(1, values), values)
    return equal.view(images.shape).float()


_APPLY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda images, factor: images * factor,
    "colour": lambda images, factor: _blend(images, _grey(images), factor),
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": lambda images, _: (images / POSTERIZE_STEP).floor_() * POSTERIZE_STEP,
    "solarize": lambda images, _: torch.where(images >= SOLARIZE_FROM, 255 - images, images),
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
