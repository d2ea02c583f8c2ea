"""single: one process, nothing is sharded, no collective. What every other strategy must be equal to.

┌────────────┐
│ rank 0     │   parameters, gradients, optimizer state: all here
└────────────┘
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainer.engine import Engine
from trainer.engines.torch_engine import TorchEngine, apply_compile
from trainer.measuring.phases import Phases
from trainer.settings.config import Config
from trainer.settings.precision import Precision


def build(config: Config, mesh: DeviceMesh, model: nn.Module, phases: Phases, precision: Precision) -> Engine:
    """The plain model."""
    if config.compile:
        apply_compile(model)
    return TorchEngine(config, model.to(mesh.device_type), phases, precision, mesh.device_type)
