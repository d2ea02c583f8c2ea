"""hsdp: fully_shard inside each group of neighbours, and equal shards kept in step between the groups.

Sharded: everything, over dp_shard (by default the processes of one node); dp_replicate groups hold the same.
Collectives per micro-batch and block: the all-gathers and reduce-scatter of fsdp, but only among neighbours. Each step
adds an all-reduce of each gradient shard between the groups: 2 (r-1)/r of 1/s of the parameters' bytes.

                     dp_shard ─▶
    dp_replicate │  ┌────────┐ ┌────────┐
                 ▼  │ P/2 .. │ │ P/2 .. │   ◀─ all-gather P, reduce-scatter G ─▶
                    └────────┘ └────────┘
                        ▲ all-reduce G/2 ▼
                    ┌────────┐ ┌────────┐
                    │ P/2 .. │ │ P/2 .. │
                    └────────┘ └────────┘
"""

from __future__ import annotations

from torch import nn

from trainer.engine import Engine
from trainer.measuring.phases import Phases
from trainer.run import Run
from trainer.strategies.sharding import build_sharded


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """Shard the model over dp_shard and replicate it over dp_replicate."""
    return build_sharded(run, run.mesh["dp_replicate", "dp_shard"], model, phases)
