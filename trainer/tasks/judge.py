"""Judging finished weights, held whole by each rank, without an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.engine import as_sums
from trainer.models.learner import Learner
from trainer.models.low_precision import apply_low_precision
from trainer.settings.config import Config
from trainer.settings.precision import resolve_precision


def open_judge(
    config: Config, model: Learner, device: str
) -> tuple[Callable[[Tensor, Tensor], Tensor], dict[str, Any]]:
    """(what `Engine.evaluate` is of an engine, facts of the model); moves the model to the device."""
    parameters = sum(p.numel() for p in model.parameters())
    model.to(device).eval()
    device_type = torch.device(device).type
    precision = resolve_precision(config, device_type)
    dtype = torch.bfloat16 if precision.name == "bf16_native" else precision.autocast_dtype
    if dtype is not None:
        apply_low_precision(model, dtype)

    def judge(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            return as_sums(*model(inputs, labels))

    return judge, {"precision": precision.name, "parameters": parameters}
