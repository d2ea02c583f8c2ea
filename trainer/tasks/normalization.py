"""Find the preprocessing of published weights: torchvision's own transforms, or the processor of a hub model."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratlab_spec.models.model_specs import (
    FILE,
    HUB_IDS,
    PIL_NUMBERS,
    PLAIN,
    TORCHVISION,
    Preprocessing,
    registered_name,
)
from stratlab_spec.settings.config import Config, ConfigError
from trainer.data.augmentation import normalise, resize

PROBE_EDGE = 480
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean per channel of torchvision's weights."""
MOST_OFF = 3.0
"""Allowed difference, of 255: the library rounds pixels after each direction, this project does not."""

log = logging.getLogger("trainer")


def find_preprocessing(config: Config) -> Preprocessing:
    """Return the preprocessing of the initial weights, unless the setting `normalization` overrides it.

    Raises:
        ConfigError: as in `_of_weights`, or the setting contradicts the normalization of the weights.
    """
    found = _of_weights(config)
    if config.normalization == "auto" or (found.mean, found.std) == (IMAGENET_MEAN, IMAGENET_STD):
        return found
    if config.init == "pretrained":
        raise ConfigError(
            f"TRAINER_NORMALIZATION=imagenet: the weights of {config.model_name} were trained with mean "
            f"{', '.join(f'{x:g}' for x in found.mean)}; remove the setting [SL-normalization-weights]"
        )
    return dataclasses.replace(found, mean=IMAGENET_MEAN, std=IMAGENET_STD, source="asked for: ImageNet's")


def find_rescaling(ours: Preprocessing, theirs: Preprocessing) -> tuple[Tensor, Tensor] | None:
    """Return (factor, offset) [channel, 1, 1] from pixels in our normalization to theirs; None if equal."""
    mean, std, other_mean, other_std = (
        torch.tensor(values).view(-1, 1, 1) for values in (ours.mean, ours.std, theirs.mean, theirs.std)
    )
    factor, offset = std / other_std, (mean - other_mean) / other_std
    if bool((factor == 1).all() and (offset == 0).all()):
        return None
    if bool((factor == factor[:1]).all() and (offset == offset[:1]).all()):
        return factor[:1], offset[:1]  # broadcasts, so grey images work too
    return factor, offset


def _of_weights(config: Config) -> Preprocessing:
    """Return the preprocessing of the initial weights; PLAIN for a built-in network from scratch.

    A hub model gets its processor's preprocessing even from scratch. Without a processor in its folder or on the hub,
    a range of -1 to 1 is assumed, and the log and `source` report it.

    Raises:
        ConfigError: the processor does more than resize, crop the centre and normalize.
    """
    name, pretrained = registered_name(config), config.init == "pretrained"
    if name and not pretrained:
        return PLAIN
    if name in TORCHVISION and not config.model_path:
        return _of_torchvision(name)
    return _of_processor(config, config.model_path or HUB_IDS.get(name, config.model))


def _of_torchvision(name: str) -> Preprocessing:
    import torchvision

    from trainer.models.torchvision_networks import NETWORKS

    weights = torchvision.models.get_model_weights(NETWORKS[name].function).DEFAULT
    made: Any = weights.transforms()
    return Preprocessing(
        mean=tuple(made.mean),
        std=tuple(made.std),
        image_size=made.crop_size[0],
        resize=made.resize_size[0],
        interpolation=made.interpolation.value,
        source=f"torchvision, {weights}",
    )


def _of_processor(config: Config, source: str) -> Preprocessing:
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(source)
    except (OSError, ValueError) as failure:  # no such file, or a file that does not name a processor
        log.info("%s: %s", source, failure)
        log.warning("%s: has no %s; assuming a range of -1 to 1 (mean and deviation 0.5)", source, FILE)
        return Preprocessing(source=f"assumed: {Path(source).name} has no {FILE}")
    kind = type(processor).__name__
    found = read_processor(processor)
    if found is None or (off := measure_difference(processor, found)) > MOST_OFF:
        named = "MODEL_PATH" if config.model_path else "MODEL"
        how = "it uses an unsupported method" if found is None else f"difference: {off:.0f} of 255"
        raise ConfigError(
            f"TRAINER_{named}={source!r}: its {kind} does more than resize, crop the centre and "
            f"normalize ({how}); choose a model whose processor does only that "
            "[SL-processor-differs]"
        )
    return found


def read_processor(processor: Any) -> Preprocessing | None:
    """Return the preprocessing of a processor of transformers; None unless square and of known interpolation.

    Mean and deviation are derived from its outputs for a black and a white image, so its rescaling factor is included.
    """
    resize, size = _edges(processor)
    interpolation = _interpolation(getattr(processor, "resample", None))
    if not size or interpolation not in PIL_NUMBERS:
        return None
    black, white = (
        _apply(processor, np.full((PROBE_EDGE, PROBE_EDGE, 3), level, np.uint8)) for level in (0, 255)
    )
    low, high = black.mean((1, 2)), white.mean((1, 2))
    if not (high > low).all():
        return None
    std = 1 / (high - low)
    return Preprocessing(
        mean=tuple(float(x) for x in np.round(-low * std, 6) + 0.0),
        std=tuple(float(x) for x in np.round(std, 6)),
        image_size=size,
        resize=0 if resize == size else resize,
        interpolation=interpolation,  # type: ignore[arg-type]
        source=type(processor).__name__,
    )


def _interpolation(resample: Any) -> str:
    """Return the interpolation of PIL's number, torchvision's name or None; "" for an unknown one."""
    value = getattr(resample, "value", resample)
    if value is None or isinstance(value, str):
        return value or "bilinear"
    return next((name for name, number in PIL_NUMBERS.items() if number == value), "")


def _edges(processor: Any) -> tuple[int, int]:
    """Return (edge after resizing, edge after the centre crop) of a square; 0 if unknown."""
    size, crop = (_edge(getattr(processor, name, None)) for name in ("size", "crop_size"))
    if not getattr(processor, "do_resize", True):
        return 0, 0
    share = getattr(processor, "crop_pct", None)  # ConvNeXT uses it below its largest size
    if share and dict(processor.size).get("shortest_edge") and size < 384:
        return int(size / share), size
    return size, crop if getattr(processor, "do_center_crop", False) and crop else size


def _edge(size: Any) -> int:
    given = dict(size) if size is not None else {}
    height, width = given.get("height"), given.get("width")
    if height != width:
        return 0
    return int(height or given.get("shortest_edge") or 0)


def measure_difference(processor: Any, how: Preprocessing) -> float:
    """Return the largest difference, of 255, between the processor's pixels of one picture and ours."""
    waves = np.linspace(0, 12, PROBE_EDGE)
    colours = [np.sin(waves[:, None] * (i + 1)) * np.cos(waves[None] * (3 - i)) for i in range(3)]
    picture = np.round((np.stack(colours) + 1) * 127.5).astype(np.uint8)
    theirs = _apply(processor, picture.transpose(1, 2, 0))
    ours = normalise(resize(torch.from_numpy(picture)[None], how.image_size, how), how)[0].numpy()
    if theirs.shape != ours.shape:
        return 255.0
    deviation = np.array(how.std).reshape(-1, 1, 1)
    return float(np.abs((theirs - ours) * deviation).max() * 255)


def _apply(processor: Any, picture: np.ndarray) -> np.ndarray:
    return np.asarray(processor(picture, return_tensors="np")["pixel_values"][0], np.float64)
