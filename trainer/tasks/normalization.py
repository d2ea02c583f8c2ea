"""What published weights expect of their images: torchvision's own transforms, and the processor of a hub model."""

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
"""Of each channel, as torchvision's weights have them."""
MOST_OFF = 3.0
"""Of 255: the library rounds its pixels after each direction, the lab does not round."""

log = logging.getLogger("trainer")


def find_preprocessing(config: Config) -> Preprocessing:
    """Of the weights that training starts from, or what the setting `normalization` says instead.

    Raises:
        ConfigError: as `_of_weights`; or the setting is given, and the weights were trained with another one.
    """
    found = _of_weights(config)
    if config.normalization == "auto" or (found.mean, found.std) == (IMAGENET_MEAN, IMAGENET_STD):
        return found
    if config.init == "pretrained":
        raise ConfigError(
            f"TRAINER_NORMALIZATION=imagenet: the weights of {config.model_name} were trained with mean "
            f"{', '.join(f'{x:g}' for x in found.mean)}; leave it out [SL-normalization-weights]"
        )
    return dataclasses.replace(found, mean=IMAGENET_MEAN, std=IMAGENET_STD, source="asked for: ImageNet's")


def find_rescaling(ours: Preprocessing, theirs: Preprocessing) -> tuple[Tensor, Tensor] | None:
    """(factor, offset) [channel, 1, 1] from pixels that are normalised in our way to pixels in theirs; None = alike."""
    mean, std, other_mean, other_std = (
        torch.tensor(values).view(-1, 1, 1) for values in (ours.mean, ours.std, theirs.mean, theirs.std)
    )
    factor, offset = std / other_std, (mean - other_mean) / other_std
    if bool((factor == 1).all() and (offset == 0).all()):
        return None
    if bool((factor == factor[:1]).all() and (offset == offset[:1]).all()):
        return factor[:1], offset[:1]  # of grey images too
    return factor, offset


def _of_weights(config: Config) -> Preprocessing:
    """Of the weights that training starts from; PLAIN where it starts from scratch with a network of ours.

    A model of the hub is given what its processor makes of an image also from scratch. Without a processor in its
    folder or on the hub, -1 to 1 is assumed, which the log and `source` say.

    Raises:
        ConfigError: a processor that does more than resize, cut out the middle and normalise.
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
    except (OSError, ValueError) as failure:  # no such file; a file that names no processor
        log.info("%s: %s", source, failure)
        log.warning("%s: no %s there, so its images go from -1 to 1 (mean and deviation 0.5)", source, FILE)
        return Preprocessing(source=f"assumed: {Path(source).name} has no {FILE}")
    kind = type(processor).__name__
    found = read_processor(processor)
    if found is None or (off := measure_difference(processor, found)) > MOST_OFF:
        named = "MODEL_PATH" if config.model_path else "MODEL"
        how = "in a way that this lab does not know" if found is None else f"{off:.0f} of 255 off"
        raise ConfigError(
            f"TRAINER_{named}={source!r}: its {kind} makes other pixels than resizing, cutting out the middle and "
            f"normalising would ({how}); expected a model whose processor does no more than that "
            "[SL-processor-differs]"
        )
    return found


def read_processor(processor: Any) -> Preprocessing | None:
    """What a processor of transformers says of itself; None where that is no square, or an unknown interpolation.

    Mean and deviation are taken from what it makes of a black and of a white image: so whatever it rescales by counts.
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
    """Of PIL's number, torchvision's name or nothing; "" = another one."""
    value = getattr(resample, "value", resample)
    if value is None or isinstance(value, str):
        return value or "bilinear"
    return next((name for name, number in PIL_NUMBERS.items() if number == value), "")


def _edges(processor: Any) -> tuple[int, int]:
    """(edge after resizing, edge after cutting out the middle) of a square; 0 where they are not told."""
    size, crop = (_edge(getattr(processor, name, None)) for name in ("size", "crop_size"))
    if not getattr(processor, "do_resize", True):
        return 0, 0
    share = getattr(processor, "crop_pct", None)  # ConvNeXT's, below its largest size
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
    """Largest difference, of 255, between the processor's pixels of one picture and ours."""
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
