"""State of the strategies made of plain PyTorch: torch.distributed.checkpoint, which reshards when it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from trainer.checkpoint.sharded_snapshot import ShardedSnapshot, ShardedStaging
from trainer.settings.precision import LossScale

# flat: an optimizer's entries are named after its parameters, whatever the number of ranks
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def snapshot(
    staging: ShardedStaging, module: nn.Module, optimizer: Any, loss_scale: LossScale
) -> ShardedSnapshot:
    """A copy of this rank's part; collective."""
    return staging.take(_state(module, optimizer, loss_scale))


def read_sharded(state: dict[str, Any], folder: Path) -> None:
    """Fills `state` with what a `ShardedSnapshot` wrote on any number of ranks; collective.

    Raises:
        RuntimeError: with what each rank says. torch raises a BaseException, which passes every `except Exception`.
    """
    try:
        dcp.load(state, checkpoint_id=folder)
    except CheckpointException as failure:
        raise RuntimeError(str(failure)) from failure


def load(module: nn.Module, optimizer: Any, loss_scale: LossScale, folder: Path) -> None:
    """Reads what a snapshot wrote with any number of ranks; collective."""
    state = _state(module, optimizer, loss_scale)
    read_sharded(state, folder)
    set_state_dict(
        module,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_FLAT,
    )
    loss_scale.load(state["loss_scale"])


def _state(module: nn.Module, optimizer: Any, loss_scale: LossScale) -> dict[str, Any]:
    model, state = get_state_dict(module, optimizer, options=_FLAT)
    return {"model": model, "optimizer": state, "loss_scale": loss_scale.state()}


def gather(module: nn.Module) -> dict[str, Tensor]:
    """The whole state under the names of the unwrapped model, fp32, on rank 0's CPU; collective."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(module, options=options)
    if dist.get_rank() != 0:
        return {}
    return {name: _plain(tensor) for name, tensor in whole.items()}


def _plain(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()  # without sharding state_dict gives the parameters themselves
    return copy.to("cpu", torch.float32) if copy.is_floating_point() else copy.cpu()
