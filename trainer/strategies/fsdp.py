"""fsdp: parameters, gradients and optimizer state in shards, PyTorch's fully_shard (FSDP2).

Sharded: everything, by rows of each parameter; a block is whole only while it computes.
Collectives per micro-batch and block: all-gather before forward, all-gather before backward, reduce-scatter of the
gradients after it. 3 (n-1)/n of the parameters' bytes, against 2 (n-1)/n with ddp.

    dp_shard ─▶  ┌────────┐ ┌────────┐ ┌────────┐
                 │ P/3    │ │ P/3    │ │ P/3    │     each rank: a third of P, G and O
                 │ G/3 O/3│ │ G/3 O/3│ │ G/3 O/3│
                 └────────┘ └────────┘ └────────┘
                      └─ all-gather P, reduce-scatter G ─┘
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainer.config import Config
from trainer.engine import Engine, TorchEngine
from trainer.models import Classifier
from trainer.phases import Phases
from trainer.precision import Precision


def build(config: Config, mesh: DeviceMesh, model: nn.Module, phases: Phases, precision: Precision) -> Engine:
    """The model sharded over the axis dp_shard, block by block."""
    model.to(mesh.device_type)
    apply_sharding(model, mesh["dp_shard"])
    return TorchEngine(config, model, phases, precision, mesh.device_type)


def apply_sharding(model: nn.Module | Classifier, axis: DeviceMesh) -> None:
    """Shards in place: each block on its own, what is left with the root."""
    assert isinstance(model, nn.Module)
    for block in model.blocks():  # type: ignore[operator]
        fully_shard(block, mesh=axis)
    fully_shard(model, mesh=axis)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # pure sums: the loss is divided by the global batch already (gloo has no PREMUL_SUM)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
