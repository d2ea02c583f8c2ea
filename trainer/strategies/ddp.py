"""ddp: every rank holds the whole model, PyTorch's DistributedDataParallel.

Sharded: nothing; each rank holds all parameters, gradients and optimizer state.
Collectives per step: one all-reduce of the gradients in 25 MiB buckets, overlapped with the backward pass of the last
micro-batch; earlier micro-batches only accumulate.

    dp_replicate ─▶  ┌────────┐ ┌────────┐ ┌────────┐
                     │ P G O  │ │ P G O  │ │ P G O  │     P parameters  G gradients  O optimizer state
                     └────────┘ └────────┘ └────────┘
                          └── all-reduce G ──┘
"""

from __future__ import annotations

from inspect import signature

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from trainer.engine import Engine
from trainer.engines.torch_engine import TorchEngine, apply_compile
from trainer.measuring.phases import Phases
from trainer.settings.config import Config
from trainer.settings.precision import Precision

# torch 2.11 has the switch under its old name alone
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(DistributedDataParallel.__init__).parameters
)


def build(config: Config, mesh: DeviceMesh, model: nn.Module, phases: Phases, precision: Precision) -> Engine:
    """The model replicated over the axis dp_replicate."""
    axis = mesh["dp_replicate"]
    if config.compile:
        apply_compile(model)
    replicated = DistributedDataParallel(
        model.to(mesh.device_type),
        process_group=axis.get_group(),
        gradient_as_bucket_view=True,
        **{_SYNC_BUFFERS: False},
    )

    def apply_sync(completes_step: bool) -> None:
        replicated.require_backward_grad_sync = completes_step

    # DDP divides the summed gradients by the number of replicas
    return TorchEngine(
        config,
        replicated,
        phases,
        precision,
        mesh.device_type,
        loss_factor=axis.size(),
        apply_sync=apply_sync,
    )
