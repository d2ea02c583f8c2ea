"""Split one decoder over up to five axes for the strategy nd, one file per axis, built on PyTorch.

Each stage of the pipeline (nd_engine.py) runs these steps in order; each step works on the result of the earlier ones:

    pipeline.py      removes the layers of other stages
    context.py       splits attention over a sequence that cp ranks share
    tensor.py        splits matrices and adapters by rows and columns over tp; ties tied weights again
    expert.py        distributes whole experts over ep
    compile          layer by layer, recomputation inside (trainer/engines/torch_engine.py)
    fully_shard.py   shards over dp_replicate x (dp_shard x cp), the experts over (dp_shard x cp x tp) / ep
    nd_engine.py     allocates memory and loads the weights by name

nd_engine.py runs training steps. This file has the meshes, and collectives with a backward pass.

`build_meshes` returns two views of the same processes:

    mesh      pp x dp_replicate x dp_shard x cp x tp      everything but experts
    experts   pp x dp_replicate x  efsdp  x  ep           efsdp = dp_shard x cp x tp / ep

Every rank of dp_shard x cp x tp sees its own tokens (with sequence parallelism on tp), so that experts may be assigned
to these ranks in any way. cp ranks hold the same parameters and gradients of different tokens, so fully_shard treats
them as further data ranks.

The backward pass of each collective is its reverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
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


Splits = list[int] | None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: Tensor, given: Splits, taken: Splits, group: dist.ProcessGroup) -> Tensor:
        ctx.given, ctx.taken, ctx.group = given, taken, group
        return _exchange(sent, given, taken, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradients[0], ctx.taken, ctx.given, ctx.group), None, None, None


def _exchange(sent: Tensor, given: Splits, taken: Splits, group: dist.ProcessGroup) -> Tensor:
    rows = sent.shape[0] if taken is None else sum(taken)
    got = sent.new_empty((rows, *sent.shape[1:]))
    dist.all_to_all_single(got, sent.contiguous(), taken, given, group=group)
    return got


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        part = part.movedim(dim, 0).contiguous()
        whole = part.new_empty((group.size() * part.shape[0], *part.shape[1:]))
        dist.all_gather_into_tensor(whole, part, group=group)
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        whole = gradients[0].movedim(ctx.dim, 0).contiguous()
        part = whole.new_empty((whole.shape[0] // ctx.group.size(), *whole.shape[1:]))
        dist.reduce_scatter_tensor(part, whole, group=ctx.group)
        return part.movedim(0, ctx.dim), None, None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coming: Tensor) -> Tensor:
        return coming.wait() if isinstance(coming, AsyncCollectiveTensor) else coming.view_as(coming)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def wait_for(coming: Tensor) -> Tensor:
    """Return a plain tensor with the history of `coming`, which a torch collective may still fill."""
    result: Tensor = _Wait.apply(coming)  # type: ignore[no-untyped-call]
    return result


# Stay outside compiled blocks: there an autograd function of this module loses its gradient (torch 2.11).
@torch.compiler.disable
def all_to_all(sent: Tensor, group: dist.ProcessGroup, given: Splits = None, taken: Splits = None) -> Tensor:
    """Send rows of `sent` to the ranks of `group`, in rank order, and return the received rows.

    Args:
        given: rows for each rank; None = equally many.
        taken: rows from each rank; None = equally many.
    """
    result: Tensor = _AllToAll.apply(sent, given, taken, group)  # type: ignore[no-untyped-call]
    return result


@torch.compiler.disable
def gather(part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Join the parts of all ranks along `dim` in rank order; backward sums the gradients and splits them."""
    result: Tensor = _Gather.apply(part, dim, group)  # type: ignore[no-untyped-call]
    return result
