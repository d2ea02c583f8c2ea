"""How long a gradient is, over tensors that lie on one rank or in shards on many."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.measuring.observation import local_part

ROW = 1 << 12
LONG = 1 << 18


def whole_norm(gradients: list[Tensor], device_type: str) -> Tensor:
    """Norm of the whole gradient, of which each rank may hold shards; equal on every rank.

    Made of the local shards: DTensor's own way costs the host a dispatch per parameter, and reduces on the CPU, which
    nccl does not see, where shards are kept in host memory (offload).
    """
    norm = total_norm([local_part(gradient) for gradient in gradients])
    first = gradients[0]
    if not isinstance(first, DTensor):
        return norm
    squared = norm.to(device_type).square()
    for axis, placement in enumerate(first.placements):
        if not placement.is_replicate():
            dist.all_reduce(squared, group=first.device_mesh.get_group(axis))
    return squared.sqrt()


def total_norm(parts: list[Tensor]) -> Tensor:
    """Norm of all parts together.

    On a CPU torch adds up the squares of a long tensor in fp32 one behind the other: of 100 million numbers the norm
    comes out 1.1 % too small (torch 2.13). There it is that of the norms of its rows.
    """
    return torch.nn.utils.get_total_norm(
        [_norms_of_rows(part) if part.numel() > LONG and part.is_cpu else part for part in parts]
    )


def _norms_of_rows(part: Tensor) -> Tensor:
    flat = part.reshape(-1)
    even = flat.numel() // ROW * ROW
    return torch.cat([torch.linalg.vector_norm(flat[:even].view(-1, ROW), dim=1), flat[even:]])
