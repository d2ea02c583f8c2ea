"""Facts of a data set of images on which the size of a model and of its batches depends."""

from __future__ import annotations

from dataclasses import dataclass

from stratlab_spec.settings.config import Config, ConfigError

MIXED = ("mixup", "all")
"""Values of `augment` that give each image a share of every class as its label."""


@dataclass(frozen=True)
class Pictures:
    """Facts of the data that an image model needs; a language model does not need them."""

    labels: int
    channels: int


KNOWN = {
    "digits": Pictures(10, 1),
    "synthetic": Pictures(10, 3),
    "cifar100": Pictures(100, 3),
    "food101": Pictures(101, 3),
}
PHOTOGRAPHS = Pictures(1000, 3)
"""Of any other data set, by default."""
MOST = 1_000_000
"""Classes or channels: no data set has as many."""


def find_pictures(config: Config, labels: int = 0, channels: int = 0) -> Pictures:
    """Return classes and channels of the data set; an argument other than 0 overrides it.

    Raises:
        ConfigError: a number out of bounds.
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
