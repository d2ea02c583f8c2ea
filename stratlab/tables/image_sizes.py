"""The edge of images that a named network has where `image_size` is 0, out of the trainer (`make schema`)."""

from __future__ import annotations

import json
from pathlib import Path

IMAGE_SIZES: dict[str, int] = json.loads(Path(__file__).with_name("image_sizes.json").read_text())


def find_image_size(model: str, image_size: object) -> int:
    """What `image_size` comes to; 0 = the own one of a model of the hub, which is not known here.

    >>> find_image_size("vit_huge", "0"), find_image_size("vit_huge", 384), find_image_size("owner/name", 0)
    (224, 384, 0)
    """
    return int(str(image_size)) or IMAGE_SIZES.get(model, 0)


def say_image_size(model: str, image_size: object) -> str:
    """`64`, or where it is 0 `224 (the model's own)`; of a model of the hub the number is not known here."""
    if str(image_size) != "0":
        return str(image_size)
    return f"{IMAGE_SIZES[model]} (the model's own)" if model in IMAGE_SIZES else "the model's own"
