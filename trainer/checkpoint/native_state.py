"""State of the strategies made of plain PyTorch: torch.distributed.checkpoint, which reshards when it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

from trainer.checkpoint.moved_state import read_state
from trainer.checkpoint.sharded_snapshot import ShardedSnapshot, ShardedStaging
from trainer.models.loss_scale import LossScale

# flat: an optimizer's entries are named after its parameters, whatever the number of ranks
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def snapshot(
    staging: ShardedStaging, module: nn.Module, optimizer: Any, loss_scale: LossScale
) -> ShardedSnapshot:
    """A copy of this rank's part; collective."""
    return staging.take(_state(module, optimizer, loss_scale))


def load(module: nn.Module, optimizer: Any, loss_scale: LossScale, folder: Path) -> None:
    """Reads what a snapshot wrote with any number of ranks, or what another strategy did; collective.

    Of parameters that are one (a tied head) the first name is read: not every strategy writes both.
    """
    state = _state(module, optimizer, loss_scale)
    again = find_names_again(module)
    for name in again:
        state["model"].pop(name)
    read_state(state, folder)
    state["model"] |= {name: state["model"][first] for name, first in again.items()}
    set_state_dict(
        module,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_FLAT,
    )
    loss_scale.load(state["loss_scale"])


def find_names_again(module: nn.Module) -> dict[str, str]:
    """Further names of parameters that have one already, each with the first; as in the state, without DDP's prefix."""
    first: dict[nn.Parameter, str] = {}
    again = {}
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    for name, parameter in inner.named_parameters(remove_duplicate=False):
        if first.setdefault(parameter, name) != name:
            again[name] = first[parameter]
    return again


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
