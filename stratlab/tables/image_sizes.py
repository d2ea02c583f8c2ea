"""The edge of images that a named network has where `image_size` is 0, out of the trainer (`make schema`)."""

from __future__ import annotations

import json
from pathlib import Path

IMAGE_SIZES: dict[str, int] = json.loads(Path(__file__).with_name("image_sizes.json").read_text())


def say_image_size(model: str, image_size: object) -> str:
    """`64`, or where it is 0 `224 (the model's own)`; of a model of the hub the number is not known here."""
    if image_size:
        return str(image_size)
    return f"{IMAGE_SIZES[model]} (the model's own)" if model in IMAGE_SIZES else "the model's own"
