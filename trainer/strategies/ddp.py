"""ddp: every rank holds the whole model, PyTorch's DistributedDataParallel.

Sharded: nothing; each rank holds all parameters, gradients and optimizer state.
Collectives per step: one all-reduce of the gradients in buckets (reduce_bucket_mib). It overlaps with the backward pass
of the last micro-batch. Earlier micro-batches only accumulate in the buckets.

    dp_replicate ─▶  ┌────────┐ ┌────────┐ ┌────────┐
                     │ P G O  │ │ P G O  │ │ P G O  │     P parameters  G gradients  O optimizer state
                     └────────┘ └────────┘ └────────┘
                          └── all-reduce G ──┘
"""

from __future__ import annotations

from inspect import signature

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from stratlab_spec.settings.library_rules import MIB, reduce_bucket_bytes
from trainer.engine import Engine
from trainer.engines.torch_engine import TorchEngine, apply_compile
from trainer.measuring.phases import Phases
from trainer.run import Run

# torch 2.11 only has the old name of this switch
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(DistributedDataParallel.__init__).parameters
)


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """Replicate the model over the axis dp_replicate."""
    axis = run.mesh["dp_replicate"]
    if run.config.compile:
        apply_compile(model.blocks(), run.compile_backend)  # type: ignore[operator]
    model.to(run.mesh.device_type)
    accumulates = run.plan.micro_batches > 1
    if accumulates:
        apply_zero_gradients(model)
    replicated = DistributedDataParallel(
        model,
        process_group=axis.get_group(),
        gradient_as_bucket_view=True,
        bucket_cap_mb=reduce_bucket_bytes(run.config) / MIB,
        static_graph=run.config.static_graph,
        **{_SYNC_BUFFERS: False},
    )
    if run.config.reduce_dtype == "bf16":
        replicated.register_comm_hook(axis.get_group(), bf16_compress_hook)

    def apply_sync(completes_step: bool) -> None:
        replicated.require_backward_grad_sync = completes_step

    # DDP divides the summed gradients by the number of replicas
    return TorchEngine(
        run, replicated, phases, loss_factor=axis.size(), apply_sync=apply_sync, keeps_gradients=accumulates
    )


def apply_zero_gradients(model: nn.Module) -> None:
    """Give every parameter a zero gradient, in place, which DDP moves into its buckets when it is constructed.

    Without it the first micro-batch would allocate new gradients in addition to the buckets: all of them twice.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
