"""The norm of a gradient whose parts live on different meshes; torch's clip_grad_norm_ cannot mix them (torch 2.13)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainer.engines.gradient_norm import total_norm
from trainer.measuring.observation import local_part


@torch.no_grad()
def measure_norm(gradients: Iterable[DTensor], pp: DeviceMesh) -> Tensor:
    """Norm of the whole gradient over all stages of the pipeline; equal on every rank, collective.

    The local sums of squares are added up over just those axes on which a gradient is in parts.

    Args:
        gradients: this rank's parts; of a parameter that two stages hold, one of them.
    """
    found: dict[tuple[DeviceMesh, tuple[int, ...]], list[Tensor]] = {}
    for gradient in gradients:
        key = gradient.device_mesh, split_dims(gradient)
        found.setdefault(key, []).append(local_part(gradient))
    total = torch.zeros((), device=pp.device_type)
    for (mesh, dims), parts in found.items():
        squared = total_norm(parts).float().square().to(total.device)
        for dim in dims:
            dist.all_reduce(squared, group=mesh.get_group(dim))
        total += squared
    if pp.size() > 1:
        dist.all_reduce(total, group=pp.get_group())
    return total.sqrt()


def split_dims(gradient: DTensor) -> tuple[int, ...]:
    """Dims of its mesh over which ranks hold different parts.

    `is_replicate` and not `is_shard`: the latter is False for the strided shards of tp x fully_shard, and a norm built
    on it is up to a third too small.
    """
    mesh = gradient.device_mesh
    return tuple(
        dim
        for dim, placement in enumerate(gradient.placements)
        if mesh.size(dim) > 1 and not placement.is_replicate()
    )


@torch.no_grad()
def clip_gradients(gradients: list[DTensor], largest: float, norm: Tensor) -> None:
    """Scales in place, as torch's clip_grads_with_norm_ does, whatever meshes the gradients are on."""
    torch._foreach_mul_([local_part(g) for g in gradients], (largest / (norm + 1e-6)).clamp(max=1.0))
