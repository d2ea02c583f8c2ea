"""The default process group of a run, and what every further group inherits from it, whoever makes it.

A time-out that is given to `init_process_group` holds for the default group alone. Meshes, DTensor, DeepSpeed
(TorchBackend.new_group) and gloo groups beside NCCL's make theirs without one, and get torch's own: 10 minutes of NCCL,
30 of gloo. They all ask `_get_default_timeout` (torch 2.13, distributed_c10d.py), so that is where the setting goes.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer.layout.fit import largest_device_bytes
from trainer.layout.world import World

DEFAULTS = ("default_pg_timeout", "default_pg_nccl_timeout")


def open_process_group(world: World, timeout_s: float) -> None:
    """Makes the default group; any group that this process makes from now on has the same time-out.

    On CUDA the group is bound to this rank's device: communicators are made now, where a failure is a failure at the
    start, and no barrier guesses a device.
    """
    timeout = timedelta(seconds=timeout_s)
    for name in DEFAULTS:
        assert hasattr(dist.distributed_c10d, name), (
            f"torch {torch.__version__} keeps its default time-outs elsewhere"
        )
        setattr(dist.distributed_c10d, name, timeout)
    dist.init_process_group(world.backend, timeout=timeout, **bind_device(world, dist.init_process_group))


def bind_device(world: World, init: Any) -> dict[str, torch.device]:
    """The argument that binds the group to this rank's device, where NCCL serves it, it has peers, and `init` takes it.

    Of a bound group gloo cannot make a mesh's groups (torch 2.11, split_group: its options cannot be copied).
    """
    if world.backend != "nccl" or world.size == 1 or "device_id" not in inspect.signature(init).parameters:
        return {}
    return {"device_id": torch.device(world.device)}


def agree_on_memory() -> int | None:
    """Bytes of the smallest device of all ranks' machines, the same on each; None = nobody knows; collective."""
    found: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, largest_device_bytes())
    return min((size for size in found if size is not None), default=None)
