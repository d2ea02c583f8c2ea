"""fsdp: parameters, gradients and optimizer state in shards, PyTorch's fully_shard (FSDP2).

Sharded: everything, by rows of each parameter; a block is whole only while it computes.
Collectives per micro-batch and block: all-gather before forward, all-gather before backward, reduce-scatter of the
gradients after it. They move 3 (n-1)/n of the parameters' bytes, against 2 (n-1)/n with ddp.

    dp_shard ─▶  ┌────────┐ ┌────────┐ ┌────────┐
                 │ P/3    │ │ P/3    │ │ P/3    │     each rank: a third of P, G and O
                 │ G/3 O/3│ │ G/3 O/3│ │ G/3 O/3│
                 └────────┘ └────────┘ └────────┘
                      └─ all-gather P, reduce-scatter G ─┘
"""

from __future__ import annotations

from torch import nn

from trainer.engine import Engine
from trainer.measuring.phases import Phases
from trainer.run import Run
from trainer.strategies.sharding import build_sharded


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """Shard the model over the axis dp_shard, block by block."""
    return build_sharded(run, run.mesh["dp_shard"], model, phases)
