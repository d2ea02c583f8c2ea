"""How stored pixels become what a model takes: resized, the middle cut out, normalised. Without torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FILE = "preprocessor_config.json"
"""As transformers calls it, in a model's folder."""
PIL_NUMBERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}
Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """The defaults give -1 to 1 and the whole image: what networks that start from scratch are trained with.

    Attributes:
        mean: of each channel, or one for all, where a pixel goes from 0 to 1.
        std: what is divided by, likewise.
        image_size: pixels of an edge that the weights were trained with; 0 = not told.
        resize: edge before the middle is cut out of it; 0 = nothing is cut off. Scales with the size that
            a run asks for.
        interpolation: of the resizing, always with antialiasing.
        source: whose these numbers are.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    image_size: int = 0
    resize: int = 0
    interpolation: Interpolation = "bilinear"
    source: str = "the lab's own: -1 to 1"

    def resized_edge(self, image_size: int) -> int:
        """Pixels of an edge before the middle, `image_size`, is cut out."""
        if not self.resize or not self.image_size:
            return image_size
        return round(image_size * self.resize / self.image_size)

    def as_dict(self) -> dict[str, Any]:
        """For config.json."""
        return dataclasses.asdict(self)


PLAIN = Preprocessing()


def write_preprocessing(how: Preprocessing, image_size: int, folder: Path) -> None:
    """Writes it in transformers' format: `AutoImageProcessor.from_pretrained(folder)` makes the same pixels."""
    edge = how.resized_edge(image_size)
    content = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": edge, "width": edge},
        "resample": PIL_NUMBERS[how.interpolation],
        "do_center_crop": edge != image_size,
        "crop_size": {"height": image_size, "width": image_size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(how.mean) if len(how.mean) > 1 else [*how.mean] * 3,
        "image_std": list(how.std) if len(how.std) > 1 else [*how.std] * 3,
    }
    (folder / FILE).write_text(json.dumps(content, indent=2) + "\n")


def read_image_size(folder: Path) -> int:
    """Pixels of an edge that the processor of this folder gives its model; 0 where that is not told."""
    try:
        content = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return 0
    if not isinstance(content, dict):
        return 0
    size = content.get("crop_size") if content.get("do_center_crop") else content.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size if isinstance(size, int) and size > 0 else 0
