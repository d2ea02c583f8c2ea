"""Batches of the right shape without data, and the facts of the data that a model's shape depends on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models import build_model
from trainer.models.decoder_build import build_decoder
from trainer.models.learner import Learner
from trainer.settings.config import Config, ConfigError
from trainer.shapes.model_shapes import default_image_size
from trainer.shapes.teacher_rules import teacher_config

MIXED = ("mixup", "all")
"""Values of `augment` that give each image a share of every class as its label."""


@dataclass(frozen=True)
class Pictures:
    """What an image model must know of the data; a language model needs none of it."""

    labels: int
    channels: int


KNOWN = {
    "digits": Pictures(10, 1),
    "synthetic": Pictures(10, 3),
    "cifar100": Pictures(100, 3),
    "food101": Pictures(101, 3),
}
PHOTOGRAPHS = Pictures(1000, 3)
"""Of any other data set, unless somebody says otherwise."""
MOST = 1_000_000
"""Classes or channels: no data set has as many."""


def find_pictures(config: Config, labels: int = 0, channels: int = 0) -> Pictures:
    """Classes and channels of the data set; what is given (not 0) goes first.

    Raises:
        ConfigError: a number that cannot be given.
    """
    given = {"labels": labels, "channels": channels}
    if problems := [
        f"{name}={value!r}: expected a whole number from 0 to {MOST:,} [SL-count-pictures]"
        for name, value in given.items()
        if type(value) is not int or not 0 <= value <= MOST
    ]:
        raise ConfigError(problems)
    known = PHOTOGRAPHS if config.dataset_path else KNOWN.get(config.dataset, PHOTOGRAPHS)
    return Pictures(labels or known.labels, channels or known.channels)


def build_empty_model(config: Config, pictures: Pictures) -> Learner:
    """The run's model on the meta device.

    Raises:
        ConfigError, DataMissing: a model that cannot be, or whose shape is not to be had.
    """
    if config.is_text:
        return build_decoder(config, empty=True)
    edge = config.image_size or default_image_size(config)
    return build_model(
        config, image_size=edge, channels=pictures.channels, num_labels=pictures.labels, empty=True
    )


def build_empty_teacher(config: Config, pictures: Pictures) -> Learner | None:
    """The network that the run's model learns from, on the meta device; None without one.

    Raises:
        ConfigError, DataMissing: as `build_empty_model`.
    """
    if not config.teacher:
        return None
    edge = 0 if config.is_text else config.image_size or default_image_size(config)
    # its weights make no difference to memory
    asked = teacher_config(config).model_copy(update={"image_size": edge, "init": "scratch"})
    return build_empty_model(asked, pictures)


def build_micro_batch(config: Config, pictures: Pictures) -> tuple[Tensor, Tensor]:
    """(inputs, labels) as the run's data gives them, m rows: images float [m, channel, edge, edge] with int64 [m] or
    float [m, class], text int64 [m, 2, token] with int64 [m, token]."""
    m = config.micro_batch_size
    if config.is_text:
        inputs = torch.zeros((m, 2, config.seq_len), dtype=torch.int64)
        return inputs, torch.zeros((m, config.seq_len), dtype=torch.int64)
    edge = config.image_size or default_image_size(config)
    images = torch.zeros((m, pictures.channels, edge, edge))
    if config.augment in MIXED:
        return images, torch.zeros((m, pictures.labels))
    return images, torch.zeros(m, dtype=torch.int64)
