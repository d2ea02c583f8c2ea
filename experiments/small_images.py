"""Data sets of images in the format of CIFAR-100 and of Food-101, small, and with something to learn.

A class is a shape in a colour. Position, size and background of each image are drawn.
"""

from __future__ import annotations

import colorsys
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = 20
SHAPES = ("disc", "square", "cross", "ring", "bars", "frame")
"""Times the colours enough for 101 classes."""


def write_cifar100(folder: Path, train_per_class: int = 20, test_per_class: int = 5) -> None:
    """As on the hub: parquet files of the splits train and test, PNG of 32 x 32 in `img`, the class in `fine_label`,
    one of 20 groups of classes in `coarse_label`."""
    import datasets

    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(names=[f"fine {i}" for i in range(100)]),
            "coarse_label": datasets.ClassLabel(names=[f"coarse {i}" for i in range(20)]),
        }
    )

    def row(random: np.random.Generator, label: int) -> dict[str, Any]:
        return {"img": draw(random, label, 32, 32, "PNG"), "fine_label": label, "coarse_label": label // 5}

    counts = {"train": train_per_class, "test": test_per_class}
    _write_splits(folder / "cifar100", 100, counts, features, row)


def write_food101(folder: Path, train_per_class: int = 12, test_per_class: int = 3) -> None:
    """As on the hub: parquet files of the splits train and validation (which is the published test split), JPEG of
    different sizes in `image`, the class in `label`."""
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"food {i}" for i in range(101)])}
    )

    def row(random: np.random.Generator, label: int) -> dict[str, Any]:
        width, height = (int(edge) for edge in random.integers(48, 97, 2))
        return {"image": draw(random, label, width, height, "JPEG"), "label": label}

    counts = {"train": train_per_class, "validation": test_per_class}
    _write_splits(folder / "data", 101, counts, features, row)


def draw(random: np.random.Generator, label: int, width: int, height: int, kind: str) -> dict[str, Any]:
    """An image as `datasets` stores it: the bytes of a file."""
    from PIL import Image

    pixels = random.integers(40, 90, (height, width, 3))
    short = min(width, height)
    radius = random.uniform(0.3, 0.42) * short
    x, y = (random.uniform(0.42, 0.58) * edge for edge in (width, height))
    across, down = np.meshgrid(np.arange(width) - x, np.arange(height) - y)
    colour = np.array(colorsys.hsv_to_rgb(label % COLOURS / COLOURS, 1.0, 1.0)) * 215 + 40
    pixels[_cover(SHAPES[label // COLOURS], across / radius, down / radius)] = colour
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, kind)
    return {"bytes": file.getvalue(), "path": None}


def _cover(shape: str, x: Any, y: Any) -> Any:
    """Which pixels a shape covers, within -1 to 1."""
    inside = (abs(x) < 1) & (abs(y) < 1)
    match shape:
        case "disc":
            return x**2 + y**2 < 1
        case "square":
            return inside
        case "cross":
            return inside & ((abs(x) < 0.35) | (abs(y) < 0.35))
        case "ring":
            return (x**2 + y**2 < 1) & (x**2 + y**2 > 0.4)
        case "bars":
            return inside & (abs(y) > 0.4)
    return inside & ((abs(x) > 0.5) | (abs(y) > 0.5))


def _write_splits(
    folder: Path,
    classes: int,
    per_class: dict[str, int],
    features: Any,
    row: Callable[[np.random.Generator, int], dict[str, Any]],
) -> None:
    import datasets

    datasets.disable_progress_bars()
    folder.mkdir(parents=True)
    for number, (split, count) in enumerate(per_class.items()):
        random = np.random.default_rng(number)
        labels = random.permutation(np.repeat(np.arange(classes), count))
        rows = [row(random, int(label)) for label in labels]
        table = datasets.Dataset.from_list(rows, features=features)
        table.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
