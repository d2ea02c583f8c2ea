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
from torch.nn.parallel import DistributedDataParallel

from trainer.engine import Engine
from trainer.engines.torch_engine import TorchEngine, apply_compile
from trainer.measuring.phases import Phases
from trainer.run import Run

# torch 2.11 has the switch under its old name alone
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(DistributedDataParallel.__init__).parameters
)


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """The model replicated over the axis dp_replicate."""
    axis = run.mesh["dp_replicate"]
    if run.config.compile:
        apply_compile(model)
    replicated = DistributedDataParallel(
        model.to(run.mesh.device_type),
        process_group=axis.get_group(),
        gradient_as_bucket_view=True,
        **{_SYNC_BUFFERS: False},
    )

    def apply_sync(completes_step: bool) -> None:
        replicated.require_backward_grad_sync = completes_step

    # DDP divides the summed gradients by the number of replicas
    return TorchEngine(run, replicated, phases, loss_factor=axis.size(), apply_sync=apply_sync)
