"""single: one process, no sharding, no collectives. Every other strategy must give the same results.

┌────────────┐
│ rank 0     │   parameters, gradients, optimizer state: all here
└────────────┘
"""

from __future__ import annotations

from torch import nn

from trainer.engine import Engine
from trainer.engines.torch_engine import TorchEngine, apply_compile
from trainer.measuring.phases import Phases
from trainer.run import Run


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """Build the plain model."""
    if run.config.compile:
        apply_compile(model.blocks(), run.compile_backend)  # type: ignore[operator]
    return TorchEngine(run, model.to(run.mesh.device_type), phases)
