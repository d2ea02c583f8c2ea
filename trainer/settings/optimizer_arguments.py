"""What an optimizer is given, under its arguments' names of torch.optim: the one place that reads its settings."""

from __future__ import annotations

from typing import Any

from trainer.settings.config import Config


def optimizer_arguments(config: Config) -> dict[str, Any]:
    """Every argument that decides what an update is; how its kernels run is the engine's (fused, foreach)."""
    shared = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        return {**shared, "momentum": config.momentum, "nesterov": config.nesterov}
    return {**shared, "betas": (config.beta1, config.beta2), "eps": config.eps}
