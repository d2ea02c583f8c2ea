"""Whom the students of this suite learn from: a network of another kind, that is sure of what it says."""

from typing import Any

SEED = 5
NAME = "cnn"


def build_teacher(config: Any, image_size: int, dtype: Any) -> Any:
    """None without the setting. Weights by a seed of their own: where they come from is tested elsewhere
    (tests/trainer/ranks/test_worker.py)."""
    if not config.teacher:
        return None
    import torch

    from stratlab_spec.settings.config import Config
    from trainer.models import build_model
    from trainer.models.teacher import Teacher, place_teacher

    asked = Config(run="teacher", model=config.teacher, seed=SEED)
    network = build_model(asked, image_size=image_size, channels=1, num_labels=10)
    with torch.no_grad():
        network.head.weight.mul_(10.0)
    return Teacher(place_teacher(network, "cpu", dtype), config.distill_temperature, config.distill_alpha)
