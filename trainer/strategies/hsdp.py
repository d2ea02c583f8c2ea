"""hsdp: replicas of shards. fully_shard inside each group of neighbours, equal shards kept in step between the groups.

Sharded: everything, over dp_shard (by default the processes of one node); dp_replicate groups hold the same.
Collectives per micro-batch and block: all-gathers and reduce-scatter as with fsdp, but among neighbours only; once per
step an all-reduce of each gradient shard between the groups: 2 (r-1)/r of 1/s of the parameters' bytes.

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
from torch.distributed.device_mesh import DeviceMesh

from trainer.engine import Engine
from trainer.measuring.phases import Phases
from trainer.settings.config import Config
from trainer.settings.precision import Precision
from trainer.strategies.sharding import build_sharded


def build(config: Config, mesh: DeviceMesh, model: nn.Module, phases: Phases, precision: Precision) -> Engine:
    """The model sharded over dp_shard, replicated over dp_replicate."""
    return build_sharded(config, mesh["dp_replicate", "dp_shard"], model, phases, precision)
