"""Augment images on the device, with the same pixels for every strategy.

`draw_looks` draws all random numbers of a step on the host, for the whole global batch, from (seed, step). Each rank
uses its rows. The appearance of a sample therefore does not depend on rank, world size or micro-batch. Each pixel is
computed only from its own sample, by operations whose result does not depend on the number of samples.

    stored uint8 -> crop, flip, rotation... as one affine sampling -> colours -> mixed with its partner

RandAugment (Cubuk et al. 2019, arXiv 1909.13719) applies 2 of 14 operations per sample, at magnitude 9 of 30. The host
knows which sample gets which operation, so each operation runs only on its samples, without synchronization.
Unlike in the paper, the geometric operations of a sample come first, because they are part of one affine sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from stratlab_spec.models.model_specs import PLAIN, Preprocessing
from stratlab_spec.settings.config import Config
from trainer.data.placement import to_device

ROUNDS = 2
RANDAUGMENT_COLUMNS = 2 * ROUNDS  # per round: the operation and its sign
STRENGTH = 9 / 30

# The largest values are those in the paper's code; the magnitude scales them by 9/30.
SHEAR = 0.3 * STRENGTH
SHIFT = 2 * 150 / 331 * STRENGTH  # in coordinates from -1 to 1
TURN = np.deg2rad(30) * STRENGTH
BLEND = 0.9 * STRENGTH
SOLARIZE_FROM = 255 * (1 - STRENGTH)
POSTERIZE_STEP = 2.0  # keeps 7 of 8 bits

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
    """Return (operation, sign) of each sample in this round."""
    operation = (numbers[:, 2 * turn] * len(OPERATIONS)).astype(np.int64)
    return operation, np.where(numbers[:, 2 * turn + 1] < 0.5, -1.0, 1.0)


def geometry(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the matrices [m, 3, 3] of the geometric operations of all rounds, on coordinates from -1 to 1."""
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
    """Apply the colour operations in place, on images from 0 to 255.

    Pixels are rounded to whole numbers between the operations. Sums over an image are then exact, so they do not
    depend on the order of addition.
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
    """Blend with a 3x3 smoothing of centre weight 5, as in PIL; the border pixels stay unchanged."""
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
    """Equalize the histogram of each sample and channel with PIL's table of the cumulative histogram."""
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


CROP_FLIP = ("crop_flip", "randaugment", "mixup", "all")
RANDAUGMENT = ("randaugment", "all")
MIXUP = ("mixup", "all")

SMALL_EDGE = 64
PADDING = 1 / 8  # of the edge: 4 pixels for 32 (He et al. 2015, arXiv 1512.03385, section 4.2)
CROP_AREA = (0.08, 1.0)  # Szegedy et al. 2014, arXiv 1409.4842, section 6
CROP_RATIO = (3 / 4, 4 / 3)
MIXUP_ALPHA = 0.2  # Zhang et al. 2017, arXiv 1710.09412, section 3.1: 0.1 to 0.4 on ImageNet
COLUMNS = 5 + RANDAUGMENT_COLUMNS


@dataclass(frozen=True)
class Looks:
    """Random numbers for the samples of one global batch, one row per position in the batch."""

    numbers: NDArray[np.float64]
    """Uniform in [0, 1), [sample, COLUMNS]."""
    partners: NDArray[np.int64] | None
    """Position in the batch of the sample to mix with; None = no mixup."""
    own_share: NDArray[np.float32]
    """Share of the sample itself in the mixture."""


def draw_looks(config: Config, step: int) -> Looks:
    """Return the looks of the global batch of `step`; the result depends only on the arguments."""
    size = config.global_batch_size
    # The third number separates this stream from the stream of the sample order.
    random = np.random.default_rng([config.seed, step, 1])
    numbers = random.random((size, COLUMNS))
    share = random.beta(MIXUP_ALPHA, MIXUP_ALPHA, size).astype(np.float32)
    partners = random.permutation(size) if config.augment in MIXUP else None
    return Looks(numbers, partners, share)


def resize(stored: Tensor, image_size: int, how: Preprocessing = PLAIN) -> Tensor:
    """Resize uint8 [m, C, H, W] to float [m, C, image_size, image_size], still 0 to 255, as the weights expect."""
    images, edge = stored.float(), how.resized_edge(image_size)
    if stored.shape[-2:] != (edge, edge):
        smooth = how.interpolation != "nearest"
        images = F.interpolate(images, (edge, edge), mode=how.interpolation, antialias=smooth)
        if how.interpolation == "bicubic":
            images.clamp_(0, 255)  # bicubic interpolation overshoots at edges
    if edge == image_size:
        return images
    first = (edge - image_size) // 2
    return images[..., first : first + image_size, first : first + image_size].contiguous()


def normalise(images: Tensor, how: Preprocessing = PLAIN) -> Tensor:
    """Normalize 0..255 to (x / 255 - mean) / std, in place.

    A grey channel is repeated to three if the channels have different means or deviations.
    """
    if len(set(how.mean)) == len(set(how.std)) == 1:
        return images.div_(255 * how.std[0]).sub_(how.mean[0] / how.std[0])
    if images.shape[1] == 1:
        images = images.repeat(1, len(how.mean), 1, 1)
    mean, std = (np.array(values).reshape(-1, 1, 1) for values in (how.mean, how.std))
    scale, shift = (to_device(x.astype(np.float32), images.device) for x in (255 * std, mean / std))
    return images.div_(scale).sub_(shift)


def prepare_images(
    stored: Tensor,
    config: Config,
    image_size: int,
    how: Preprocessing = PLAIN,
    numbers: NDArray[np.float64] | None = None,
) -> Tensor:
    """Prepare stored images for the model, in training and in evaluation.

    Args:
        stored: uint8 [m, C, H, W] on the device.
        image_size: edge of the results in pixels, which the model may decide.
        numbers: the images' rows of `Looks.numbers`; None = evaluation, without augmentation.

    Returns:
        Normalised float [m, channel, image_size, image_size]. On a GPU the memory format is channels_last, which
        convolutions use and preserve: ResNet-50 took 0.56 of the time on an H200 (docs/gpu.md).
    """
    if numbers is None:
        images = resize(stored, image_size, how)
    else:
        images = augment_images(stored, numbers, config, image_size, how)
    images = normalise(images, how)
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def augment_images(
    stored: Tensor, numbers: NDArray[np.float64], config: Config, image_size: int, how: Preprocessing = PLAIN
) -> Tensor:
    """Return augmented images [m, C, image_size, image_size], 0 to 255.

    Args:
        stored: uint8 [m, C, H, W] on the device.
        numbers: the images' rows of `Looks.numbers`.
        image_size: edge of the results in pixels, which the model may decide.
    """
    if config.augment not in CROP_FLIP:
        return resize(stored, image_size, how)
    where = _crop_flip(numbers, stored.shape[-1])
    if config.augment in RANDAUGMENT:
        where = where @ geometry(numbers[:, 5:])
    images = _sample(stored.float(), where, image_size)
    if config.augment in RANDAUGMENT:
        images = apply_colours(images, numbers[:, 5:])
    return images


def mix(own: Tensor, other: Tensor, own_share: Tensor) -> Tensor:
    """Return own_share * own + (1 - own_share) * other, row by row."""
    share = own_share.view(-1, *[1] * (own.dim() - 1))
    return own * share + other * (1 - share)


def _crop_flip(numbers: NDArray[np.float64], edge: int) -> NDArray[np.float64]:
    """Return matrices [m, 3, 3] from coordinates in the result to coordinates in the stored image, both -1 to 1.

    Small images move by up to an eighth, with black outside. Larger images are cropped at random size and shape.
    """
    u = numbers
    if edge <= SMALL_EDGE:
        pixels = int(edge * PADDING)
        # shift by whole pixels, as cropping a padded image does
        shift_x, shift_y = ((np.floor(u[:, i] * (2 * pixels + 1)) - pixels) * 2 / edge for i in (0, 1))
        half_x = half_y = np.ones(len(u))
    else:
        area = CROP_AREA[0] + u[:, 2] * (CROP_AREA[1] - CROP_AREA[0])
        low, high = np.log(CROP_RATIO)
        ratio = np.exp(low + u[:, 3] * (high - low))
        half_x, half_y = (np.minimum(1, np.sqrt(x)) for x in (area * ratio, area / ratio))
        shift_x, shift_y = (1 - half_x) * (2 * u[:, 0] - 1), (1 - half_y) * (2 * u[:, 1] - 1)
    mirrored = np.where(u[:, 4] < 0.5, -1, 1)
    matrix = np.zeros((len(u), 3, 3))
    matrix[:, 0, 0], matrix[:, 0, 2] = mirrored * half_x, shift_x
    matrix[:, 1, 1], matrix[:, 1, 2] = half_y, shift_y
    matrix[:, 2, 2] = 1
    return matrix


def _sample(images: Tensor, where: NDArray[np.float64], size: int) -> Tensor:
    """Sample bilinearly, with black outside; no antialiasing, because images are stored at most at 8/7 of `size`."""
    m = to_device(where[:, :2].astype(np.float32), images.device)
    line = (torch.arange(size, device=images.device, dtype=torch.float32) * 2 + 1) / size - 1
    x, y = line.view(1, 1, size), line.view(1, size, 1)
    # not affine_grid: it uses a matrix product, whose rounding depends on the batch and on TF32
    across, down = (
        m[:, i, 0, None, None] * x + m[:, i, 1, None, None] * y + m[:, i, 2, None, None] for i in (0, 1)
    )
    grid = torch.stack((across, down), dim=-1)
    # not padding_mode="zeros": it darkens the border of an image that does not move
    found = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return found * (grid.abs().amax(dim=-1) <= 1).unsqueeze(1)
