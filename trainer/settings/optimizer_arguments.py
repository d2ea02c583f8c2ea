"""What an optimizer is given, under its arguments' names of torch.optim: the one place that reads its settings."""

from __future__ import annotations

from typing import Any

from trainer.settings.config import Config
from trainer.settings.optimizer_table import OPTIMIZERS, SHARED


def optimizer_arguments(config: Config) -> dict[str, Any]:
    """Every argument that decides what an update is; how its kernels run is the engine's (fused, foreach)."""
    given: dict[str, Any] = {name: getattr(config, name) for name in SHARED}
    for argument, settings in OPTIMIZERS[config.optimizer].arguments.items():
        values = tuple(getattr(config, name) for name in settings)
        given[argument] = values if len(values) > 1 else values[0]
    return given
