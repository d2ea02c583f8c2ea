"""A small data set laid out like CIFAR-100 on the hub: parquet files, `img`, `fine_label`, `coarse_label`."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
from PIL import Image

EDGE = 32
CARD = """---
pretty_name: Not CIFAR-100, but laid out like it
configs:
- config_name: cifar100
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
  default: true
---
"""


def draw(index: int, label: int, classes: int) -> Image.Image:
    """Stripes whose direction and colour tell the class, with noise; the same for the same index."""
    random = np.random.default_rng(index)
    angle, shade = np.pi * (label * 7 % classes) / classes, 2 * np.pi * label / classes
    y, x = np.mgrid[:EDGE, :EDGE] * (2 * np.pi / 10)
    waves = np.sin(x * np.cos(angle) + y * np.sin(angle) + random.uniform(0, 2 * np.pi))
    colour = 0.5 + 0.5 * np.cos(shade + 2 * np.pi * np.arange(3) / 3)
    pixels = 90 + 70 * colour + 60 * waves[..., None] + random.normal(0, 10, (EDGE, EDGE, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def build_cifar_like(folder: Path, classes: int = 100, train: int = 600, test: int = 200) -> Path:
    """Writes README.md, data/train-00000-of-00001.parquet and data/test-00000-of-00001.parquet; returns `folder`."""
    coarse = max(2, classes // 5)
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(names=[f"fine{i}" for i in range(classes)]),
            "coarse_label": datasets.ClassLabel(names=[f"coarse{i}" for i in range(coarse)]),
        }
    )
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(CARD)
    for split, first, count in (("train", 0, train), ("test", 10**6, test)):
        labels = [i % classes for i in range(count)]
        rows = {
            "img": [draw(first + i, label, classes) for i, label in enumerate(labels)],
            "fine_label": labels,
            "coarse_label": [label % coarse for label in labels],
        }
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    return folder
