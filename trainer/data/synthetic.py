"""Made-up images that a model can learn, from nothing but their index: for tests and for measuring speed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.data.fingerprint import hash_splits
from trainer.data.images import ImageData, Images, hold_out

CLASSES = 10
TRAIN_SAMPLES = 2000
TEST_SAMPLES = 400
LARGEST_EDGE = 64  # stored; made larger on the device like any other small image
SEED = 5  # never the run's seed: runs with different seeds must see the same images


def load_synthetic(image_size: int, validation_fraction: float, train_samples: int) -> ImageData:
    """10 classes, 3 channels, 400 test images, 2000 training images or as many as `train_samples` asks for.

    A class is a direction and a colour of stripes; their phase, their contrast and the noise differ per image.
    """
    edge = min(image_size, LARGEST_EDGE)
    wanted = train_samples or TRAIN_SAMPLES
    # the validation samples come on top, so that `train_samples` are left to train on
    held = max(1, round(wanted * validation_fraction)) if train_samples else 0
    train = _images(0, wanted + held, edge, image_size)
    if train_samples:
        train, validation = train.part(np.arange(wanted)), train.part(np.arange(wanted, wanted + held))
    else:
        train, validation = hold_out(train, validation_fraction)
    # far behind any training sample, so that the test images are the same whatever is asked for
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
