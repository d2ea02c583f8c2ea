"""Small data sets of pictures, one of them laid out like CIFAR-100 on the hub, and how a run opens them."""

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

from stratlab_spec.settings.config import Config
from trainer.data import open_data
from trainer.data.images import ImageData

EDGE = 4
BROKEN = b"no picture"
ABC = datasets.ClassLabel(names=["ape", "bee", "cow"])
TEXT = datasets.Value("string")


def png(colour: tuple[int, int, int]) -> bytes:
    """A picture of one colour, but for its last pixel."""
    content, picture = io.BytesIO(), Image.new("RGB", (EDGE, EDGE), colour)
    picture.putpixel((EDGE - 1, EDGE - 1), (255, 255, 255))
    picture.save(content, "png")
    return content.getvalue()


def pngs(count: int, first: int = 0) -> list[bytes]:
    return [png((number % 256, number // 256, 9)) for number in range(first, first + count)]


def table(pictures: list[bytes], labels: list[Any], kind: Any = ABC) -> datasets.Dataset:
    """As a split; `kind` is the feature of its labels."""
    features = datasets.Features({"image": datasets.Image(), "label": kind})
    cells = [{"bytes": content, "path": None} for content in pictures]
    return datasets.Dataset.from_dict({"image": cells, "label": labels}, features=features)


def save(folder: Path, **splits: datasets.Dataset) -> Path:
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def opened(folder: Path, edge: int = EDGE, **settings: Any) -> ImageData:
    return open_data(Config(run="try", dataset_path=str(folder), **settings), edge)


def sizes(data: ImageData) -> list[int]:
    return [len(split) for split in (data.train, data.validation, data.test)]


CIFAR_EDGE = 32
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
    y, x = np.mgrid[:CIFAR_EDGE, :CIFAR_EDGE] * (2 * np.pi / 10)
    waves = np.sin(x * np.cos(angle) + y * np.sin(angle) + random.uniform(0, 2 * np.pi))
    colour = 0.5 + 0.5 * np.cos(shade + 2 * np.pi * np.arange(3) / 3)
    pixels = 90 + 70 * colour + 60 * waves[..., None] + random.normal(0, 10, (CIFAR_EDGE, CIFAR_EDGE, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def build_cifar_like(folder: Path, classes: int = 100, train: int = 600, test: int = 200) -> Path:
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
