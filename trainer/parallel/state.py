"""State of the strategy nd: every mesh writes the same names, so that any mesh reads what another has written.

    rank 0  hf.model.layers.0 ...  ─┐                       ┌─  any other stages, shards, experts
    rank 1  hf.model.layers.18 ... ─┴─ one flat name space ─┴─  torch.distributed.checkpoint reshards when it reads

A tied head on a stage of its own is stored under the embedding's name: a mesh without that stage has no other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from trainer.checkpoint.moved_state import read_state
from trainer.checkpoint.sharded_snapshot import ShardedSnapshot, ShardedStaging
from trainer.models.loss_scale import LossScale
from trainer.parallel.stage import EMBEDDING, HEAD, Stage

# flat: an optimizer's entries are named after its parameters, whatever stage or group they are in
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class HasStages(Protocol):
    """What of an engine is saved."""

    stages: list[Stage]
    loss_scale: LossScale


def snapshot(staging: ShardedStaging, engine: HasStages) -> ShardedSnapshot:
    """A copy of this rank's part; collective."""
    return staging.take(_whole_state(engine))


def load(engine: HasStages, folder: Path) -> None:
    """Reads what a snapshot wrote on any mesh with any number of ranks, or what another strategy did; collective.

    Optimizers that have not stepped yet get their state first (torch steps them with learning rate and gradients 0):
    what does not exist would not be asked for.
    """
    state = _whole_state(engine)
    read_state(state, folder)
    for stage in engine.stages:
        model, optimizer = _stage_state(stage)
        set_model_state_dict(stage.module, {key: state["model"][_stored(stage, key)] for key in model})
        found = {key: state["optimizer"][_stored(stage, key)] for key in optimizer}
        set_optimizer_state_dict(stage.module, stage.optimizer, found, options=_FLAT)
    engine.loss_scale.load(state["loss_scale"])


def _whole_state(engine: HasStages) -> dict[str, Any]:
    models: dict[str, Any] = {}
    optimizers: dict[str, Any] = {}
    for stage in engine.stages:
        model, optimizer = _stage_state(stage)
        models |= {_stored(stage, key): value for key, value in model.items()}
        optimizers |= {_stored(stage, key): value for key, value in optimizer.items()}
    return {"model": models, "optimizer": optimizers, "loss_scale": engine.loss_scale.state()}


def _stage_state(stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    model = get_model_state_dict(stage.module)
    return model, get_optimizer_state_dict(stage.module, stage.optimizer, options=_FLAT)


def _stored(stage: Stage, key: str) -> str:
    """The name in the checkpoint; keys of an optimizer hold a parameter's name between other words."""
    return key.replace(HEAD, EMBEDDING) if stage.is_last and stage.module.shape.tied else key


@torch.no_grad()
def gather(engine: HasStages) -> dict[str, Tensor]:
    """The whole state by the names of the whole decoder, fp32, on rank 0's CPU; empty elsewhere; collective.

    One parameter at a time: no device holds more than one that is whole, beside what it has. A tied head is there
    twice, as in the decoder's own state, and is one tensor.
    """
    rank = dist.get_rank()
    held = {
        key: value for stage in engine.stages for key, value in get_model_state_dict(stage.module).items()
    }
    tied = engine.stages[0].module.shape.tied
    if tied:
        held.pop(HEAD, None)
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, {name: tuple(value.shape) for name, value in held.items()})
    device = next(iter(held.values())).device
    found: dict[str, Tensor] = {}
    for name in sorted(set().union(*sizes)):
        owner = next(r for r, names in enumerate(sizes) if name in names)
        if name in held:
            value = held[name]
            whole = (value.full_tensor() if isinstance(value, DTensor) else value).float()
        elif rank == 0:
            whole = torch.empty(sizes[owner][name], device=device)
        else:
            continue
        if owner and rank == owner:
            dist.send(whole.contiguous(), dst=0)
        if rank == 0:
            if owner:
                dist.recv(whole, src=owner)
            found[name] = whole.cpu() if whole.device.type != "cpu" else whole.detach().clone()
    if tied and rank == 0:
        found[HEAD] = found[EMBEDDING]
    return found
