"""Shard a model for fsdp and hsdp: fully_shard (FSDP2) over one or two axes, with rank 0's weights."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from stratlab_spec.strategies import accumulates_sharded
from trainer.engine import Engine
from trainer.engines.torch_engine import TorchEngine, apply_compile
from trainer.measuring.phases import Phases
from trainer.parallel.fully_shard import apply_sharding, apply_sync
from trainer.run import Run


def build_sharded(run: Run, mesh: DeviceMesh, model: nn.Module, phases: Phases) -> Engine:
    """Shard the model over `mesh`, block by block: (dp_shard) or (dp_replicate, dp_shard).

    Args:
        model: rank 0's has the weights; on the other ranks it may be on the meta device.
    """
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
