"""The optimizer of every engine but DeepSpeed's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainer.settings.config import Config
from trainer.settings.optimizer_arguments import optimizer_arguments


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """AdamW or SGD with every argument that matters written out; one fused kernel instead of a loop in Python."""
    trainable = [p for p in parameters if p.requires_grad]
    arguments = optimizer_arguments(config)
    if config.optimizer == "sgd":
        # not fused: aten._fused_sgd_ has no rule for sharded tensors (torch 2.13)
        return torch.optim.SGD(trainable, **arguments, foreach=True)
    return torch.optim.AdamW(trainable, **arguments, fused=True)
