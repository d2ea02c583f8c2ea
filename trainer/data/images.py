"""What every image data set looks like to the trainer: three splits of uint8 images and integer labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CACHE_LIMIT_BYTES = 2 << 30
SPLIT_SEED = 20_240_229  # of the held-out samples: never the run's seed, or two seeds would not be comparable

Decode = Callable[[int], NDArray[np.uint8]]


class Images:
    """One split. Decodes an image when it is first asked for and keeps it, if all of them fit into 2 GiB."""

    def __init__(self, decode: Decode, labels: NDArray[np.int64], shape: tuple[int, int, int]) -> None:
        self.labels = labels
        self.shape = shape
        self._decode = decode
        fits = len(labels) * int(np.prod(shape)) <= CACHE_LIMIT_BYTES
        self._cache = np.zeros((len(labels), *shape), np.uint8) if fits else None
        self._cached = np.zeros(len(labels), bool)

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """uint8 [sample, channel, height, width] of these samples."""
        if self._cache is None:
            return np.stack([self._decode(int(i)) for i in indices])
        for i in indices[~self._cached[indices]]:
            self._cache[i] = self._decode(int(i))
            self._cached[i] = True
        return self._cache[indices]

    def part(self, indices: NDArray[np.int64]) -> Images:
        """A split of its own from some of the samples."""
        return Images(lambda i: self._decode(int(indices[i])), self.labels[indices], self.shape)


@dataclass(frozen=True)
class ImageData:
    """A data set with its three splits; `sha256` identifies labels, split and a sample of the pixels."""

    train: Images
    validation: Images
    test: Images
    class_names: list[str]
    sha256: str

    @property
    def channels(self) -> int:
        return self.train.shape[0]


def hold_out(images: Images, fraction: float) -> tuple[Images, Images]:
    """(kept, held out), by a permutation that depends on the number of samples alone."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    held = max(1, round(len(images) * fraction))
    return images.part(order[held:]), images.part(order[:held])


def first_samples(images: Images, limit: int) -> Images:
    """At most `limit` samples, picked by the same permutation; 0 = all."""
    if not limit or limit >= len(images):
        return images
    return images.part(np.random.default_rng(SPLIT_SEED).permutation(len(images))[:limit])
