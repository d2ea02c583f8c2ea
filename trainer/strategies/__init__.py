"""One small file per strategy; the only place that picks one by name."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainer.config import Config
from trainer.engine import Engine
from trainer.phases import Phases


def build_engine(config: Config, mesh: DeviceMesh, model: nn.Module, phases: Phases) -> Engine:
    """The model under `config.strategy`; the model must be on its device already."""
    match config.strategy:
        case "single":
            from trainer.strategies import single as strategy
        case "ddp":
            from trainer.strategies import ddp as strategy  # type: ignore[no-redef]
        case "fsdp":
            from trainer.strategies import fsdp as strategy  # type: ignore[no-redef]
        case "zero2":
            from trainer.strategies import zero as strategy  # type: ignore[no-redef]
    return strategy.build(config, mesh, model, phases)
