"""Published shapes of the models, without torch: what the pre-flight check needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config import Config


@dataclass(frozen=True)
class VitShape:
    """Shape of a vision transformer. Sizes from the ViT paper (arXiv 2010.11929), table 1; tiny is ours."""

    hidden: int
    layers: int
    heads: int
    mlp: int
    patch: int
    image: int


VIT = {
    "vit_tiny": VitShape(hidden=64, layers=4, heads=4, mlp=128, patch=4, image=32),
    "vit_small": VitShape(hidden=384, layers=12, heads=6, mlp=1536, patch=16, image=224),
    "vit_base": VitShape(hidden=768, layers=12, heads=12, mlp=3072, patch=16, image=224),
    "vit_large": VitShape(hidden=1024, layers=24, heads=16, mlp=4096, patch=16, image=224),
    "vit_huge": VitShape(hidden=1280, layers=32, heads=16, mlp=5120, patch=14, image=224),
}
CNN_IMAGE = 32


def default_image_size(config: Config) -> int:
    """Pixels of an edge that the model was published with."""
    return VIT[config.model].image if config.model in VIT else CNN_IMAGE


def image_size_problem(config: Config, image_size: int) -> str | None:
    """Why this model cannot take images of this size, or None."""
    model = config.model
    step = VIT[model].patch if model in VIT else 8
    if image_size % step == 0 and image_size > 0:
        return None
    near = max(1, round(image_size / step)) * step
    return f"TRAINER_IMAGE_SIZE={image_size}: {model} needs a multiple of {step}, for example {near}"
