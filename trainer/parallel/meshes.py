"""`build_meshes` returns two views of the same processes.

    mesh      pp x dp_replicate x dp_shard x cp x tp      everything but experts
    experts   pp x dp_replicate x  efsdp  x  ep           efsdp = dp_shard x cp x tp / ep

Every rank of dp_shard x cp x tp sees its own tokens (with sequence parallelism on tp), so that experts may be assigned
to these ranks in any way. cp ranks hold the same parameters and gradients of different tokens, so fully_shard treats
them as further data ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True)
class Meshes:
    """The position of this rank, and the groups that it shares with other ranks."""

    world: DeviceMesh
    pp: DeviceMesh
    cp: DeviceMesh
    tp: DeviceMesh
    shard: DeviceMesh
    """For fully_shard: one axis, or (dp_replicate, shards)."""
    experts: DeviceMesh | None
    """For the experts' fully_shard; None without experts."""
    ep: DeviceMesh | None

    @property
    def device_type(self) -> str:
        return self.world.device_type

    @property
    def stage_peers(self) -> list[list[int]]:
        """Return the ranks along the pipeline, one list per place on the other axes."""
        rows: list[list[int]] = self.world.mesh.reshape(self.pp.size(), -1).T.tolist()
        return rows


def build_meshes(world: DeviceMesh, ep: int, has_experts: bool) -> Meshes:
    """Split the mesh of stratlab_spec.strategies.ND_AXES; collective, because it creates process groups.

    Args:
        ep: size of the expert axis; divides dp_shard x cp x tp.
    """
    backend: Any = dist.get_backend()  # named, so that no group equals the default group (world.build_mesh)
    shards = world["dp_shard"]
    if world["cp"].size() > 1:
        shards = world["dp_shard", "cp"]._flatten("fsdp", backend_override=backend)
    replicas = world["dp_replicate"].size()
    assert shards.mesh_dim_names
    shard = world["dp_replicate", shards.mesh_dim_names[0]] if replicas > 1 else shards
    experts = ep_mesh = None
    if has_experts:
        pool = shards.size() * world["tp"].size()
        assert pool % ep == 0, f"ep={ep} does not divide dp_shard x cp x tp = {pool}"
        names = ("pp", "dp_replicate", "efsdp", "ep")
        sizes = (world["pp"].size(), replicas, pool // ep, ep)
        named = dict.fromkeys(names, backend)
        whole = init_device_mesh(world.device_type, sizes, mesh_dim_names=names, backend_override=named)
        ep_mesh = whole["ep"]
        experts = whole["dp_replicate", "efsdp"] if replicas > 1 else whole["efsdp"]
    return Meshes(world, world["pp"], world["cp"], world["tp"], shard, experts, ep_mesh)
