"""Hold an image data set: three splits of uint8 images and integer labels.

Images stay uint8 at their stored size; `trainer/data/batches.py` resizes them on the device. Resizing on the CPU would
limit the measured speed: one core upsamples fewer images per second than a GPU trains on.

Two data sets are built in. `digits` are real handwritten digits in scikit-learn (1797 scans of 8x8 pixels, 10 classes,
UCI 1998). `synthetic` are learnable images generated from their index, for tests and speed measurements.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.pictures import StoredPictures

CACHE_LIMIT_BYTES = 2 << 30
DECODE_THREADS = 8
PROBES = 16
SPLIT_SEED = (
    20_240_229  # of the held-out samples; not the run's seed, so that runs with two seeds stay comparable
)

Decode = Callable[[int], NDArray[np.uint8]]


class Images:
    """One split; decodes an image on first use and keeps it if all images fit into 2 GiB.

    Args:
        decode: index -> uint8 [channel, height, width]; called from several threads at once.
        labels: int64 [sample].
        shape: (channel, height, width) as stored.
        image_size: pixels of an edge that the model expects; 0 = as stored.
        classes: number of classes; 0 = inferred from the labels.
        slow: decode in threads (compressed files).
        stored: the pictures to decode, if any, in the same order.
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
        """Return the bytes of all images, decoded."""
        return len(self.labels) * int(np.prod(self.shape))

    @property
    def bytes_cached(self) -> int:
        """Return the bytes of the decoded images in the cache."""
        return int(self._known.sum()) * int(np.prod(self.shape)) if self.cached else 0

    def pixels(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return these samples as uint8 [sample, channel, height, width]."""
        if self._cache is None:
            return np.stack(list(self._decode_all(indices)))
        missing = indices[~self._known[indices]]
        for i, image in zip(missing, self._decode_all(missing), strict=True):
            self._cache[i] = image
            self._known[i] = True  # set after the pixels, because other threads read it
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
        """Return a new split of these samples."""
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
    """A data set with its three splits.

    Attributes:
        sha256: identifies labels, splits and a sample of the pixels.
        source_edge: median of the images' shorter edges in pixels before resizing; None = generated at any size.
        notes: one sentence per unusual fact.
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
    """Return (kept, held out), by a permutation that depends only on the number of samples."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    held = max(1, round(len(images) * fraction))
    return images.part(order[held:]), images.part(order[:held])


def first_samples(images: Images, limit: int) -> Images:
    """Return at most `limit` samples, picked by the same permutation; 0 = all."""
    if not limit or limit >= len(images):
        return images
    return images.part(np.random.default_rng(SPLIT_SEED).permutation(len(images))[:limit])


def hash_splits(*splits: Images) -> str:
    """Return the sha256 of all labels and of 16 evenly spaced images of each split.

    The hashes of two runs are equal exactly if they used the same data.
    """
    digest = hashlib.sha256()
    for split in splits:
        digest.update(repr((len(split), split.shape)).encode())
        digest.update(split.labels.tobytes())
        probes = np.unique(np.linspace(0, len(split) - 1, PROBES).astype(np.int64))
        digest.update(split.pixels(probes).tobytes())
    return digest.hexdigest()


TEST_FRACTION = 0.2
EDGE = 8


def load_digits(image_size: int, validation_fraction: float, train_samples: int) -> ImageData:
    """Return the digits, 8x8 pixels, one channel; a fifth is the test split."""
    rows = _read_scans()
    grey = np.round(rows[:, :-1].reshape(-1, 1, EDGE, EDGE) * (255 / 16)).astype(np.uint8)
    labels = rows[:, -1].astype(np.int64)
    names = [str(label) for label in range(10)]
    everything = Images(lambda i: grey[i], labels, (1, EDGE, EDGE), image_size=image_size, classes=len(names))
    rest, test = hold_out(everything, TEST_FRACTION)
    train, validation = hold_out(rest, validation_fraction)
    train = first_samples(train, train_samples)
    return ImageData(train, validation, test, names, hash_splits(train, validation, test), EDGE)


def _read_scans() -> np.ndarray:
    """Return float64 [scan, 65]: 64 pixels from 0 to 16, then the class.

    scikit-learn's own reader returns the same, but its import adds 4 s to the start of every rank.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        sentence = "dataset=digits: scikit-learn, which holds the scans, is not installed [SL-digits-absent]"
        raise ModuleNotFoundError(sentence, name="scikit-learn")
    folder = Path(package.submodule_search_locations[0], "datasets", "data")
    with gzip.open(folder / "digits.csv.gz") as file:
        return np.loadtxt(file, delimiter=",")


CLASSES = 10
TRAIN_SAMPLES = 2000
TEST_SAMPLES = 400
LARGEST_EDGE = 64  # stored; the device enlarges it like any other small image
SEED = 5  # not the run's seed: runs with different seeds must use the same images


def load_synthetic(image_size: int, validation_fraction: float, train_samples: int) -> ImageData:
    """Return 10 classes, 3 channels, 400 test images, and 2000 or `train_samples` training images.

    A class is a direction and a colour of stripes; phase, contrast and noise differ per image.
    """
    edge = min(image_size, LARGEST_EDGE)
    wanted = train_samples or TRAIN_SAMPLES
    # the validation samples are added, so that `train_samples` remain for training
    held = max(1, round(wanted * validation_fraction)) if train_samples else 0
    train = _images(0, wanted + held, edge, image_size)
    if train_samples:
        train, validation = train.part(np.arange(wanted)), train.part(np.arange(wanted, wanted + held))
    else:
        train, validation = hold_out(train, validation_fraction)
    # far after any training sample, so that the test images never depend on `train_samples`
    test = _images(2**40, TEST_SAMPLES, edge, image_size)
    names = [f"stripes{i}" for i in range(CLASSES)]
    return ImageData(train, validation, test, names, hash_splits(train, validation, test))


def _images(first: int, count: int, edge: int, image_size: int) -> Images:
    labels = np.array([(first + i) % CLASSES for i in range(count)], np.int64)
    return Images(
        lambda i: _draw(first + i, edge), labels, (3, edge, edge), image_size=image_size, classes=CLASSES
    )


def _draw(index: int, edge: int) -> NDArray[np.uint8]:
    random = np.random.default_rng([SEED, index])
    label = index % CLASSES
    angle = np.pi * label / CLASSES
    across = np.linspace(0, 6 * np.pi, edge, dtype=np.float32)
    turned = across[:, None] * np.float32(np.sin(angle)) + across[None, :] * np.float32(np.cos(angle))
    waves = np.sin(turned + np.float32(random.uniform(0, 2 * np.pi)))
    colour = 0.5 + 0.5 * np.cos(2 * np.pi * (label / CLASSES + np.arange(3) / 3))
    pattern = 128 + random.uniform(50, 100) * waves[None] * colour[:, None, None]
    noise = random.normal(0, 20, (3, edge, edge))
    return np.clip(pattern + noise, 0, 255).astype(np.uint8)
