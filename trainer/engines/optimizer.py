"""The optimizer of every engine but DeepSpeed's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainer.settings.config import Config


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> Any:
    """AdamW or SGD with every argument that matters written out; one fused kernel instead of a loop in Python."""
    trainable = [p for p in parameters if p.requires_grad]
    if config.optimizer == "sgd":
        # not fused: aten._fused_sgd_ has no rule for sharded tensors (torch 2.13)
        return torch.optim.SGD(trainable, config.lr, weight_decay=config.weight_decay, foreach=True)
    return torch.optim.AdamW(
        trainable, config.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=config.weight_decay, fused=True
    )
