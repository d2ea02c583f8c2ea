"""fsdp and hsdp: parameters, gradients and optimizer state in shards, with PyTorch's fully_shard (FSDP2).

fsdp. Sharded: everything, by rows of each parameter; a block is whole only while it computes.
Collectives per micro-batch and block: all-gather before forward, all-gather before backward, reduce-scatter of the
gradients after it. They move 3 (n-1)/n of the parameters' bytes, against 2 (n-1)/n with ddp.

    dp_shard ─▶  ┌────────┐ ┌────────┐ ┌────────┐
                 │ P/3    │ │ P/3    │ │ P/3    │     each rank: a third of P, G and O
                 │ G/3 O/3│ │ G/3 O/3│ │ G/3 O/3│
                 └────────┘ └────────┘ └────────┘
                      └─ all-gather P, reduce-scatter G ─┘

hsdp: fully_shard inside each group of neighbours, and equal shards kept in step between the groups.
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

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from stratlab_spec.settings.library_rules import accumulates_sharded
from stratlab_spec.strategies import STRATEGIES
from trainer.engine import Engine
from trainer.engines.torch_engine import TorchEngine, apply_compile
from trainer.measuring.phases import Phases
from trainer.parallel.fully_shard import apply_sharding, apply_sync
from trainer.run import Run


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """Shard the model over the strategy's axes, block by block.

    Args:
        model: rank 0's has the weights; on the other ranks it may be on the meta device.
    """
    mesh = run.mesh[STRATEGIES[run.config.strategy].axes]
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if run.config.compile:
        apply_compile(model.blocks(), run.compile_backend)  # type: ignore[operator]
    model.to("meta")
    tie_weights(model)
    apply_sharding(model, model.blocks(), mesh, run.config, run.precision)  # type: ignore[operator]
    model.to_empty(device="cpu" if run.config.offload == "all" else mesh.device_type)
    tie_weights(model)
    _broadcast_weights(model, weights, mesh.device_type)
    assert isinstance(model, FSDPModule)
    sync = partial(apply_sync, model, accumulates_sharded(run.config))
    return TorchEngine(run, model, phases, apply_sync=sync)


def tie_weights(model: nn.Module) -> None:
    """Tie parameters again: `to("meta")` and `to_empty` give every module its own (torch 2.13)."""
    if tie := getattr(model, "tie_weights", None):
        tie()


@torch.no_grad()
def _broadcast_weights(model: nn.Module, first: dict[str, Tensor], device_type: str) -> None:
    """Broadcast rank 0's whole parameters and buffers, one at a time on the device; each rank keeps its shard.

    torch's set_model_state_dict skips buffers that are not in the state. It also sends from the parameters' device; for
    offloaded parameters this is the host, which nccl cannot access.

    Args:
        first: rank 0's weights by name; of the other ranks only names and shapes count.
    """

    def whole(name: str) -> Tensor:
        source = first[name]
        tensor = torch.empty(source.shape, dtype=source.dtype, device=device_type)
        if dist.get_rank() == 0:
            tensor.copy_(source)
        dist.broadcast(tensor, src=0)
        return tensor

    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor), name
        mesh, placements = parameter.device_mesh, parameter.placements
        shard = distribute_tensor(whole(name), mesh, placements, src_data_rank=None)
        parameter.to_local().copy_(shard.to_local())
    for name, _ in list(model.named_buffers()):  # on the device, even if the parameters are offloaded
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, whole(name))
