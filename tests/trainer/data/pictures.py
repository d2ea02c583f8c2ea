"""Small data sets of pictures, and how a run opens them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
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
    """As many different ones."""
    return [png((number % 256, number // 256, 9)) for number in range(first, first + count)]


def table(pictures: list[bytes], labels: list[Any], kind: Any = ABC) -> datasets.Dataset:
    """As a split; `kind` is the feature of its labels."""
    features = datasets.Features({"image": datasets.Image(), "label": kind})
    cells = [{"bytes": content, "path": None} for content in pictures]
    return datasets.Dataset.from_dict({"image": cells, "label": labels}, features=features)


def save(folder: Path, **splits: datasets.Dataset) -> Path:
    """As `save_to_disk` does."""
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Files by their paths inside the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def opened(folder: Path, edge: int = EDGE, **settings: Any) -> ImageData:
    """The data set as a run sees it."""
    return open_data(Config(run="try", dataset_path=str(folder), **settings), edge)


def sizes(data: ImageData) -> list[int]:
    """Of its three splits."""
    return [len(split) for split in (data.train, data.validation, data.test)]
