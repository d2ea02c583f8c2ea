"""Real handwritten digits that come inside scikit-learn: 1797 scans of 8x8 pixels, 10 classes (UCI, 1998)."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from trainer.data.fingerprint import hash_splits
from trainer.data.images import ImageData, Images, first_samples, hold_out

TEST_FRACTION = 0.2
EDGE = 8


def load_digits(image_size: int, validation_fraction: float, train_samples: int) -> ImageData:
    """The digits, 8x8 pixels, one channel; a fifth of them is the test split."""
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
    """float64 [scan, 65]: 64 pixels from 0 to 16, then the class.

    scikit-learn's own reader does the same; importing it takes 4 s of every rank's start.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        sentence = (
            "dataset=digits: the scans come with scikit-learn, which is not installed [SL-digits-absent]"
        )
        raise ModuleNotFoundError(sentence, name="scikit-learn")
    folder = Path(package.submodule_search_locations[0], "datasets", "data")
    with gzip.open(folder / "digits.csv.gz") as file:
        return np.loadtxt(file, delimiter=",")
