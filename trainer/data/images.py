"""What every image data set looks like to the trainer: three splits of uint8 images and integer labels.

Images stay uint8 at the size they are stored in; `trainer/data/batches.py` resizes them on the device. Resizing on the
CPU would be what is measured: one core upsamples fewer images per second than a GPU trains on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.stored_pictures import StoredPictures

CACHE_LIMIT_BYTES = 2 << 30
DECODE_THREADS = 8
SPLIT_SEED = 20_240_229  # of the held-out samples: never the run's seed, or two seeds would not be comparable

Decode = Callable[[int], NDArray[np.uint8]]


class Images:
    """One split. Decodes an image when it is first asked for and keeps it, if all of them fit into 2 GiB.

    Args:
        decode: index -> uint8 [channel, height, width]; called from several threads at once.
        labels: int64 [sample].
        shape: (channel, height, width) as stored.
        image_size: pixels of an edge that the model wants; 0 = as stored.
        classes: number of classes; 0 = as many as the labels show.
        slow: decoding is worth threads (compressed files).
        stored: the pictures that are decoded, where there are any; in the same order.
    """

    def __init__(
        self,
        decode: Decode,
        labels: NDArray[np.int64],
        shape: tuple[int, int, int],
        *,
        image_size: int = 0,
        classes: int = 0,
        slow: bool = False,
        stored: StoredPictures | None = None,
    ) -> None:
        self.labels = labels
        self.shape = shape
        self.image_size = image_size or shape[1]
        self.classes = classes or int(labels.max(initial=0)) + 1
        self._decode = decode
        self.slow = slow
        self.stored = stored
        self._threads: ThreadPoolExecutor | None = None
        self.cached = self.bytes_stored <= CACHE_LIMIT_BYTES
        self._cache = np.zeros((len(labels), *shape), np.uint8) if self.cached else None
        self._known = np.zeros(len(labels), bool)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def bytes_stored(self) -> int:
        """Bytes of all images together, decoded."""
        return len(self.labels) * int(np.prod(self.shape))

    @property
    def bytes_cached(self) -> int:
        """Of those that have been decoded and are kept."""
        return int(self._known.sum()) * int(np.prod(self.shape)) if self.cached else 0

    def pixels(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """uint8 [sample, channel, height, width] of these samples."""
        if self._cache is None:
            return np.stack(list(self._decode_all(indices)))
        missing = indices[~self._known[indices]]
        for i, image in zip(missing, self._decode_all(missing), strict=True):
            self._cache[i] = image
            self._known[i] = True  # after the pixels: another thread may be looking
        return self._cache[indices]

    def _decode_all(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        wanted = [int(i) for i in indices]
        if not self.slow or len(wanted) < 2:
            return [self._decode(i) for i in wanted]
        if self._threads is None:
            workers = min(DECODE_THREADS, len(os.sched_getaffinity(0)))
            self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        return list(self._threads.map(self._decode, wanted))

    def part(self, indices: NDArray[np.int64]) -> Images:
        """A split of its own from some of the samples."""
        return Images(
            lambda i: self._decode(int(indices[i])),
            self.labels[indices],
            self.shape,
            image_size=self.image_size,
            classes=self.classes,
            slow=self.slow,
            stored=self.stored.part(indices) if self.stored else None,
        )


@dataclass(frozen=True)
class ImageData:
    """A data set with its three splits; `sha256` identifies labels, split and a sample of the pixels.

    `source_edge`: pixels of the shorter edge of its images, the median, before anything is resized; None = drawn at
    any size. `notes`: a sentence for each thing that is odd about it.
    """

    train: Images
    validation: Images
    test: Images
    class_names: list[str]
    sha256: str
    source_edge: int | None = None
    notes: tuple[str, ...] = ()

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
