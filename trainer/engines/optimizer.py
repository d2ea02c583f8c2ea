"""The optimizer of every engine but DeepSpeed's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trainer.settings.config import Config
from trainer.settings.optimizer_arguments import optimizer_arguments


def step_optimizer(optimizer: Any, lr: float, norm: Tensor, skips: bool) -> None:
    """One update; where `skips` none if the norm of the whole gradient is not finite, so on all ranks alike.

    A fused optimizer looks at a number on the device, and the host never waits. It does for the others, and where
    parameters are kept elsewhere than the norm (offload).
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    if skips:
        first = optimizer.param_groups[0]["params"][0]
        if optimizer.defaults.get("fused") and first.device == norm.device:
            optimizer.found_inf = (~norm.isfinite()).float()
        elif not norm.isfinite():
            return
    optimizer.step()


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """AdamW or SGD with every argument that matters written out; one fused kernel instead of a loop in Python."""
    trainable = [p for p in parameters if p.requires_grad]
    arguments = optimizer_arguments(config)
    if config.optimizer == "sgd":
        # not fused: aten._fused_sgd_ has no rule for sharded tensors (torch 2.13)
        return torch.optim.SGD(trainable, **arguments, foreach=True)
    return torch.optim.AdamW(trainable, **arguments, fused=True)
