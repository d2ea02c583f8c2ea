"""A rank's part of a whole tensor, for every placement that tensor, expert and data parallelism produce."""

from __future__ import annotations

from math import prod

from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

try:  # not public, though fully_shard makes it of every parameter that tp or ep has split along its first dimension
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError as failure:  # pragma: no cover
    raise ImportError("this torch has no _StridedShard; tested with 2.11 and 2.13") from failure


def take_local(whole: Tensor, like: DTensor) -> Tensor:
    """What this rank holds of `whole` if it is laid out like `like`; a view, no communication.

    fully_shard cuts what tp or ep has left of a parameter, although its axes come first in the mesh: such a
    _StridedShard is applied after the plain ones. Uneven parts are torch.chunk's: the last ones are smaller or empty.
    """
    assert whole.shape == like.shape, f"{tuple(whole.shape)} is not the whole of {tuple(like.shape)}"
    mesh, placements = like.device_mesh, like.placements
    position = mesh.get_coordinate()
    assert position is not None, "this rank is not on the tensor's mesh"
    part = whole
    for axis in _order(placements, mesh.shape):
        dim = placements[axis].dim  # type: ignore[attr-defined]
        part = _chunk(part, dim, mesh.shape[axis], position[axis])
    return part


def _order(placements: tuple[Placement, ...], sizes: tuple[int, ...]) -> list[int]:
    """The mesh's axes that split something, in the order in which they do so."""
    plain, strided = [], []
    for axis, placement in enumerate(placements):
        if isinstance(placement, _StridedShard):
            inner = [
                size
                for size, other in list(zip(sizes, placements, strict=True))[axis + 1 :]
                if not other.is_replicate() and other.dim == placement.dim  # type: ignore[attr-defined]
            ]
            assert placement.split_factor == prod(inner), f"{placements} on {sizes}: in an order of its own"
            strided.append(axis)
        elif isinstance(placement, Shard):
            plain.append(axis)
        else:
            assert isinstance(placement, Replicate), f"{placement} holds no values of its own"
    return plain + strided[::-1]


def _chunk(tensor: Tensor, dim: int, parts: int, index: int) -> Tensor:
    length = tensor.shape[dim]
    size = -(-length // parts)
    start = min(index * size, length)
    return tensor.narrow(dim, start, min(size, length - start))
