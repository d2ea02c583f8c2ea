"""Real handwritten digits that come inside scikit-learn: 1797 scans of 8x8 pixels, 10 classes (UCI, 1998)."""

from __future__ import annotations

import numpy as np

from trainer.data.fingerprint import hash_splits
from trainer.data.images import ImageData, Images, first_samples, hold_out

TEST_FRACTION = 0.2


def load_digits(image_size: int, validation_fraction: float, train_samples: int) -> ImageData:
    """The digits, 8x8 pixels, one channel; a fifth of them is the test split."""
    from sklearn.datasets import load_digits as read_scans

    scans = read_scans()
    grey = np.round(scans.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = scans.target.astype(np.int64)
    names = [str(name) for name in scans.target_names]
    everything = Images(lambda i: grey[i], labels, (1, 8, 8), image_size=image_size, classes=len(names))
    rest, test = hold_out(everything, TEST_FRACTION)
    train, validation = hold_out(rest, validation_fraction)
    train = first_samples(train, train_samples)
    return ImageData(train, validation, test, names, hash_splits(train, validation, test))
