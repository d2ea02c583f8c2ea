"""How far images may be resized: a model learns nothing worth comparing from pixels that are not there."""

from __future__ import annotations

from trainer.settings.config import Config
from trainer.shapes.model_shapes import registered_name

MOST_ENLARGED = 7
"""CIFAR's 32 pixels on the 224 of the published models: the farthest that this lab's sources go."""
MOST_REDUCED = 16
"""Food-101's 512 pixels on 32. Images of ImageNet were reduced about so far on purpose (arXiv 1707.08819)."""


def scale_problem(config: Config, source_edge: int | None, image_size: int) -> str | None:
    """Why images of this data set mean nothing at the size that the model gets, or None.

    Args:
        source_edge: pixels of an edge as the data set has them; None = they are drawn at any size.
        image_size: pixels of an edge that the model gets.
    """
    if source_edge is None:
        return None
    if source_edge * MOST_ENLARGED < image_size:
        how, most = "enlarged", MOST_ENLARGED
    elif image_size * MOST_REDUCED < source_edge:
        how, most = "reduced", MOST_REDUCED
    else:
        return None
    asked = "" if config.image_size else f" (that of {registered_name(config) or config.model_name})"
    times = max(source_edge / image_size, image_size / source_edge)
    smallest, largest = -(-source_edge // MOST_REDUCED), source_edge * MOST_ENLARGED
    return (
        f"TRAINER_IMAGE_SIZE={image_size}{asked}: the images of {config.dataset_name} have {source_edge} pixels an "
        f"edge and would be {how} {times:.0f} times, expected at most {most}; choose another TRAINER_DATASET, "
        f"or a TRAINER_MODEL or TRAINER_IMAGE_SIZE of {smallest} to {largest} pixels [SL-image-scale]"
    )
